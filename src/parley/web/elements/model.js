/**
 * Facts about a model for new users: its name, what it can do, and questions that work. For models that are not listed
 * here nothing is claimed.
 */

/**
 * @typedef {object} Facts
 * @property {string} name public name
 * @property {string | null} about key of a sentence on what it can do; null: nothing is claimed
 * @property {string[]} starters keys of questions for the chat
 * @property {string[]} spoken keys of sentences to say in a call
 * @property {string[]} seen keys of things to show it with the camera
 * @property {Scene[]} scenes things to do together
 * @property {OwnVoice[]} voices the only voices it can speak with, the default one first; empty: any
 */
/**
 * @typedef {object} Scene
 * @property {string} id `scene.ID` is the key of its name
 * @property {string | null} prompt key of its instructions; null: those of the page are used
 * @property {string[]} spoken keys of sentences to start with
 */

/**
 * A built-in voice of the model. It is selected with its sample: the model answers in the voice that is nearest to the
 * sample.
 * @typedef {object} OwnVoice
 * @property {string} id `voice.ID` is the key of its name, and `voices/ID.wav` its sample
 */

/** @type {Facts} */
const NOTHING = { name: '', about: null, starters: [], spoken: [], seen: [], scenes: [], voices: [] };

/** @param {string} model name from the server, possibly the end of a path or address @returns {Facts} */
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
