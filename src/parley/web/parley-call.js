/**
 * <parley-call>: a voice call on another site's page, by one script tag (docs/do/embed.md). Loads the element.
 *
 * It is a plain script, because browsers run plain scripts of any server: if the server does not allow the page to load
 * the rest, visitors see a sentence in place of the element, and the console shows the page's owner what to configure.
 */
(() => {
  const script = document.currentScript ?? document.querySelector('script[src*="/static/parley-call.js"]');
  const { href, origin } = new URL('./elements/call/call.js', /** @type {HTMLScriptElement} */ (script).src);
  const isChinese = navigator.language.startsWith('zh');
  const sentence = isChinese ? '现在无法语音通话。' : 'Voice calls are not available right now.';

  /** Shows its content as text, if it has any. */
  class Unavailable extends HTMLElement {
    connectedCallback() {
      if (!this.textContent?.trim()) this.append(sentence);
    }
  }

  import(href).catch((error) => {
    console.error(
      `<parley-call>: ${origin} does not let this page load its files (${error}). On that server, set ` +
        `PARLEY_SECURITY__ALLOWED_ORIGINS=${location.origin}. If this page has a content security policy, it needs ` +
        `script-src ${origin}.`,
    );
    customElements.define('parley-call', Unavailable);
  });
})();
