/**
 * What a model can do, for people who meet it the first time: its name, the language it understands, and
 * questions that work. Models that are not listed here promise nothing.
 */

/**
 * @typedef {object} Facts
 * @property {string} name as people know it
 * @property {string | null} about key of a sentence on what it can; null: nothing is promised
 * @property {string[]} starters keys of questions for the chat
 * @property {string[]} spoken keys of sentences to say in a call
 * @property {string[]} seen keys of things to show to its camera
 * @property {Scene[]} scenes things to do together
 * @property {OwnVoice[]} voices those it speaks with whatever it is shown, its usual one first; empty: any
 */
/**
 * @typedef {object} Scene
 * @property {string} id `scene.ID` is its name
 * @property {string | null} prompt key of its instructions; null: those of the page do
 * @property {string[]} spoken keys of sentences to begin with
 */

/**
 * A voice of the model itself. Its sample chooses it: the model answers in the voice that is nearest to it.
 * @typedef {object} OwnVoice
 * @property {string} id `voice.ID` is its name, and `voices/ID.wav` how it sounds
 */

/** @type {Facts} */
const NOTHING = { name: '', about: null, starters: [], spoken: [], seen: [], scenes: [], voices: [] };

/** @param {string} model name of the server, perhaps a path or an address at the end of which it stands @returns {Facts} */
export function factsOf(model) {
  const name = model.split(/[/\\]/).at(-1) ?? '';
  if (name === 'pocket') {
    return {
      name: 'pocket',
      about: 'model.pocket',
      starters: ['pocket.sum', 'pocket.spell', 'pocket.capital', 'pocket.riddle'],
      spoken: ['pocket.say_name', 'pocket.sum', 'pocket.capital', 'pocket.joke'],
      seen: ['pocket.see', 'pocket.colour'],
      scenes: [
        { id: 'riddles', prompt: null, spoken: ['pocket.riddle', 'pocket.another', 'pocket.twister'] },
        { id: 'stories', prompt: null, spoken: ['pocket.story', 'pocket.poem', 'pocket.joke'] },
        { id: 'sums', prompt: null, spoken: ['pocket.sum', 'pocket.half', 'pocket.spell'] },
        { id: 'facts', prompt: null, spoken: ['pocket.capital', 'pocket.opposite', 'pocket.meaning'] },
      ],
      voices: [{ id: 'woman' }, { id: 'man' }],
    };
  }
  if (name === 'parrot') return { ...NOTHING, name: 'parrot', about: 'model.parrot', spoken: ['parrot.say'] };
  if (/minicpm-?o/i.test(name)) {
    return {
      name: 'MiniCPM-o 4.5',
      about: 'model.minicpmo',
      starters: ['chat.starter_describe', 'chat.starter_story', 'chat.starter_translate'],
      spoken: ['big.tutor', 'big.translate', 'big.quiz'],
      seen: ['big.look', 'big.read'],
      scenes: [
        { id: 'tutor', prompt: 'scene.tutor_prompt', spoken: ['big.tutor'] },
        { id: 'translator', prompt: 'scene.translator_prompt', spoken: ['big.translate'] },
        { id: 'quiz', prompt: 'scene.quiz_prompt', spoken: ['big.quiz'] },
        { id: 'guide', prompt: 'scene.guide_prompt', spoken: ['big.look', 'big.read'] },
      ],
      voices: [],
    };
  }
  return { ...NOTHING, name };
}
