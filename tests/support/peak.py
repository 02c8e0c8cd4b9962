"""Peak memory of a computation."""

from typing import Any

from tools.roofline.meter import Returned, tensors_of
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode


class Peak(TorchDispatchMode):
    """Measures the maximum number of bytes of tensors that are alive at the same time, of those
    created within the context.

    Args:
        returned: known results of operators, since layers repeat the same ones. With it, tensors
            without memory are counted; without it, those in CPU memory.
    """

    def __init__(self, returned: Returned | None = None) -> None:
        super().__init__()
        self.most = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self._returned = returned
        self._device = "cpu" if returned is None else "meta"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = tensors_of((args, kwargs))
        if self._returned is None:
            out = func(*args, **kwargs)
        else:
            key = self._returned.key(func, args, kwargs, inputs)
            out = self._returned.run(func, args, kwargs, key)
        given = {tensor.untyped_storage()._cdata for tensor in inputs}
        made = False
        for tensor in tensors_of(out):
            storage = tensor.untyped_storage()
            if tensor.device.type == self._device and storage._cdata not in given:
                self._alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
                made = True
        if made:
            for number, (reference, _) in list(self._alive.items()):
                if reference.expired():
                    del self._alive[number]
            self.most = max(self.most, sum(size for _, size in self._alive.values()))
        return out
