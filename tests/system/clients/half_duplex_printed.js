// The JavaScript program printed in half_duplex_api.txt, unchanged but for its indentation, which
// the text does not show.

const sessionId = 'hdx_' + Math.random().toString(36).slice(2, 10);
const ws = new WebSocket(`wss://${location.host}/ws/half_duplex/${sessionId}`);
let aiSpeaking = false;
let audioContext, captureNode;
// -- Reference audio for voice cloning (base64 PCM float32, 16kHz) --
const refAudioBase64 = getRefAudioBase64();
ws.onopen = () => console.log('Connected, waiting for queue...');
ws.onmessage = (event) => {
const msg = JSON.parse(event.data);
switch (msg.type) {
case 'queued':
console.log(`Queue position: #${msg.position}, ETA: ${msg.estimated_wait_s}s`);
break;
case 'queue_done':
// GPU assigned — send prepare with system_content containing ref audio.
// system_content follows the model's best practice: [text, audio, text].
// The audio item embeds the reference voice used for both LLM context and TTS cloning.
ws.send(JSON.stringify({
type: 'prepare',
system_content: [
{ type: 'text', text: 'Mimic the voice from the audio sample.' },
{ type: 'audio', data: refAudioBase64 }, // reference voice
{ type: 'text', text: 'You are a helpful assistant. Reply naturally.' },
],
config: {
vad: { threshold: 0.8, min_silence_duration_ms: 800 },
generation: { max_new_tokens: 256, temperature: 0.7 },
tts: { enabled: true },
session: { timeout_s: 180 },
},
}));
break;
case 'prepared':
console.log(`Session ready (timeout: ${msg.timeout_s}s)`);
startMicCapture(); // begin sending audio_chunk
break;
case 'vad_state':
// Server-side VAD detected speech start / end
console.log(msg.speaking ? 'User speaking...' : 'User stopped');
break;
case 'generating':
// Server is processing user speech and starting generation.
// Stop sending audio to prevent echo feedback.
aiSpeaking = true;
console.log(`Generating (speech: ${msg.speech_duration_ms}ms)`);
break;
case 'chunk':
// Streaming token: incremental text and/or audio segment
if (msg.text_delta) process.stdout.write(msg.text_delta);
if (msg.audio_data) playAudio(msg.audio_data); // PCM float32, 24kHz
break;
case 'turn_done':
// Turn complete — resume mic after playback finishes + 800ms buffer
// to avoid capturing the AI's own audio output.
console.log(`\nTurn ${msg.turn_index} done: ${msg.text}`);
setTimeout(() => { aiSpeaking = false; }, getPlaybackRemaining() + 800);
break;
case 'timeout':
console.log(`Session timed out (${msg.elapsed_s}s)`);
break;
case 'error':
console.error('Error:', msg.error);
break;
}
};
async function startMicCapture() {
const stream = await navigator.mediaDevices.getUserMedia({ audio: { sampleRate: 16000 } });
audioContext = new AudioContext({ sampleRate: 16000 });
await audioContext.audioWorklet.addModule('capture-processor.js');
const source = audioContext.createMediaStreamSource(stream);
captureNode = new AudioWorkletNode(audioContext, 'capture-processor');
source.connect(captureNode);
// AudioWorklet is event-driven, NOT timer-based:
// The audio rendering thread accumulates mic samples and fires 'chunk'
// when the buffer reaches ~0.5s. No sleep or polling needed.
captureNode.port.onmessage = (e) => {
if (e.data.type === 'chunk' && !aiSpeaking && ws.readyState === WebSocket.OPEN) {
ws.send(JSON.stringify({
type: 'audio_chunk',
audio_base64: float32ToBase64(e.data.audio),
}));
}
};
}
function stopSession() {
ws.send(JSON.stringify({ type: 'stop' }));
ws.close();
}
