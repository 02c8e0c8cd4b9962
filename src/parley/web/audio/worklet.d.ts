// The global scope of an AudioWorklet, as far as our worklets use it; TypeScript's DOM library has none.
declare const sampleRate: number;
declare const currentTime: number;
declare class AudioWorkletProcessor {
  readonly port: MessagePort;
  constructor(options?: unknown);
}
declare function registerProcessor(name: string, processor: new (options?: any) => AudioWorkletProcessor): void;
