from tests.contracts.dialect import DialectContract

from parley.dialects.registry import installed

for _spoken in installed():
    _name = "Test" + _spoken.__name__
    globals()[_name] = type(_name, (DialectContract,), {"spoken": _spoken})
