/** Line icons on a 24 by 24 grid, drawn for this page. */

/** @type {Record<string, string>} */
const PATHS = {
  mic: 'M12 3a3 3 0 0 1 3 3v6a3 3 0 0 1-6 0V6a3 3 0 0 1 3-3ZM5 11a7 7 0 0 0 14 0M12 18v3',
  'mic-off':
    'M9 6a3 3 0 0 1 6 0v5M9 9v3a3 3 0 0 0 4.5 2.6M5 11a7 7 0 0 0 11 5.7M19 11a7 7 0 0 1-.4 2.3M12 18v3M4 4l16 16',
  phone:
    'M6.6 4h2.6l1.5 4-2 1.6a12 12 0 0 0 5.700 5.700l1.600-2 4 1.500v2.600A2 2 0 0 1 18 19.400 14.500 14.500 0 0 1 4.600 6 2 2 0 0 1 6.600 4Z',
  end: 'M3.500 14.500c0-5 17-5 17 0v1.500l-4.500 1-.8-3c-2-.7-4.400-.7-6.400 0l-.8 3-4.500-1Z',
  pause: 'M8.500 5.500v13M15.500 5.500v13',
  play: 'M7.500 4.800v14.400L19 12Z',
  stop: 'M7 7h10v10H7Z',
  hush: 'M9 11V5.500a1.500 1.500 0 0 1 3 0V10m0-5.500v-1a1.500 1.500 0 0 1 3 0V10m0-4.500a1.500 1.500 0 0 1 3 0V14a7 7 0 0 1-7 7c-3 0-4.500-1.400-6-4l-2-3.700a1.500 1.500 0 0 1 2.500-1.600L9 14.500V8.500',
  text: 'M4 5h16v11H9l-5 4ZM8 9h8M8 12.500h5',
  settings: 'M4 7h9m4 0h3M4 17h3m4 0h9M15 4.500v5M9 14.500v5',
  camera: 'M4 8h3l1.500-2.500h7L17 8h3v11H4ZM12 16.500a3.200 3.200 0 1 0 0-6.400 3.200 3.200 0 0 0 0 6.400Z',
  video: 'M3.500 7h11v10h-11ZM14.500 11l6-3.500v9l-6-3.500',
  'video-off': 'M3.500 7H5m4 0h5.500v5.500m0 4.500h-11V7M14.500 11l6-3.500v9M4 4l16 16',
  flip: 'M4 9a8 8 0 0 1 14-3l2 2m0-4v4h-4M20 15a8 8 0 0 1-14 3l-2-2m0 4v-4h4',
  mirror: 'M12 3v18M9 7 4 17h5ZM15 7l5 10h-5Z',
  full: 'M4 9V4h5M15 4h5v5M20 15v5h-5M9 20H4v-5',
  freeze:
    'M12 3v18M4.200 7.500l15.600 9M19.800 7.500l-15.600 9M9.500 4.500 12 7l2.500-2.500M9.500 19.500 12 17l2.500 2.500',
  screen: 'M3.500 5h17v11h-17ZM9 20h6M12 16v4M9.500 10.500 12 8l2.500 2.500M12 8v5.500',
  captions: 'M3.500 5.500h17v13h-17ZM7 13h4M13 13h4M7 15.800h2M11 15.800h6',
  search: 'M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14Zm5-2 4.500 4.500',
  send: 'M5 12h13M12.500 6l6 6-6 6',
  plus: 'M12 5v14M5 12h14',
  image: 'M4 5h16v14H4ZM4 16l5-5 4 4 2.500-2.500L20 17M15.500 9.500h.01',
  sound: 'M4 9.500v5h3.500L12 18V6L7.500 9.500ZM15.500 9a4 4 0 0 1 0 6M18 6.500a8 8 0 0 1 0 11',
  'sound-off': 'M4 9.500v5h3.500L12 18V6L7.500 9.500ZM16 10l4 4m0-4-4 4',
  file: 'M6 3.500h8l4 4v13H6ZM14 3.500v4h4',
  copy: 'M9 9h11v11H9ZM15 9V4H4v11h5',
  edit: 'M5 19l1-4L16 5l3 3L9 18ZM14 7l3 3',
  retry: 'M19.500 12a7.500 7.500 0 1 1-2.200-5.300L20 9.500m0-5v5h-5',
  trash: 'M5 7h14M10 7V4.500h4V7M7 7l.8 12.500h8.400L17 7M10.500 10.500v6M13.500 10.500v6',
  download: 'M12 4v11m-4.500-4L12 15.500 16.500 11M5 19.500h14',
  share: 'M12 15V4m-4 3.500L12 4l4 3.500M6 11H5v9h14v-9h-1',
  close: 'M6 6l12 12M18 6 6 18',
  menu: 'M4 7h16M4 12h16M4 17h16',
  sun: 'M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8ZM12 2.500v2M12 19.500v2M2.500 12h2M19.500 12h2M5.300 5.300l1.400 1.400M17.300 17.300l1.400 1.400M18.700 5.300l-1.400 1.400M6.700 17.300l-1.400 1.400',
  moon: 'M20 14a8 8 0 1 1-10-10 6.500 6.500 0 0 0 10 10Z',
  auto: 'M12 20a8 8 0 1 0 0-16 8 8 0 0 0 0 16ZM12 4v16M15 6v12',
  bell: 'M6 17V11a6 6 0 0 1 12 0v6l1.500 1.500h-15ZM10.500 21h3',
  'bell-off': 'M6 17V11a6 6 0 0 1 9.500-4.900M18 11v3M4.500 18.500H16M10.500 21h3M4 4l16 16',
  chat: 'M4 5h16v11H9l-5 4Z',
  turns: 'M4 9h13l-3.500-3.500M20 15H7l3.500 3.500',
  wave: 'M4 10v4M8 7v10M12 4v16M16 7v10M20 10v4',
  history: 'M4 12a8 8 0 1 0 2.500-5.800L4 8.500m0-5v5h5M12 8v4.500l3 2',
  warn: 'M12 4 2.800 19.500h18.400ZM12 10v4.500M12 17h.01',
  info: 'M12 20.500a8.500 8.500 0 1 0 0-17 8.500 8.500 0 0 0 0 17ZM12 11v5.500M12 8h.01',
  record:
    'M12 20.500a8.500 8.500 0 1 0 0-17 8.500 8.500 0 0 0 0 17ZM12 15.500a3.500 3.500 0 1 0 0-7 3.500 3.500 0 0 0 0 7Z',
  up: 'M12 19V5m-5.500 5.500L12 5l5.500 5.500',
  down: 'M12 5v14m-5.500-5.500L12 19l5.500-5.500',
  listen:
    'M7.500 9.500a5 5 0 0 1 10 0c0 3-3 3.800-3 6.500a3.200 3.200 0 0 1-5.800 1.800M10 10a2.500 2.500 0 0 1 5 0c0 1.500-1.500 2-2 3M4 4l16 16',
  code: 'M8.500 7 3.500 12l5 5M15.500 7l5 5-5 5',
  shield: 'M12 3.500 5 6v6c0 4.500 3 7.200 7 8.500 4-1.300 7-4 7-8.500V6Z',
  arrow: 'M5 12h14m-6-6 6 6-6 6',
  'arrow-in': 'M19 5 6 18m0-9v9h9',
  'arrow-out': 'M5 19 18 6M9 6h9v9',
  user: 'M12 12a4 4 0 1 0 0-8 4 4 0 0 0 0 8ZM4.500 20.500c.8-4 3.800-6 7.500-6s6.700 2 7.500 6',
  skip: 'M5 5.500v13L14.500 12ZM18.500 5.500v13',
  move: 'M12 3v18M3 12h18M9.500 5.500 12 3l2.500 2.500M9.500 18.500 12 21l2.500-2.500M5.500 9.500 3 12l2.500 2.500M18.500 9.500 21 12l-2.500 2.500',
  window: 'M3.500 5h17v14h-17ZM12 12h6v4.500h-6Z',
  more: 'M6 12h.01M12 12h.01M18 12h.01',
  globe:
    'M12 20.500a8.500 8.500 0 1 0 0-17 8.500 8.500 0 0 0 0 17ZM3.500 12h17M12 3.500c5 5 5 12 0 17M12 3.500c-5 5-5 12 0 17',
  spark: 'M12 4l1.800 5.200L19 11l-5.200 1.800L12 18l-1.800-5.200L5 11l5.200-1.800ZM18.500 16v4M16.500 18h4',
  check: 'M5 12.500l4.500 4.500L19 7',
};

const SVG = 'http://www.w3.org/2000/svg';

/** @param {string} name @returns {SVGSVGElement} */
export function icon(name) {
  const svg = document.createElementNS(SVG, 'svg');
  svg.setAttribute('viewBox', '0 0 24 24');
  svg.setAttribute('class', 'icon');
  svg.setAttribute('aria-hidden', 'true');
  svg.setAttribute('data-icon', name);
  const path = document.createElementNS(SVG, 'path');
  path.setAttribute('d', PATHS[name] ?? PATHS.info);
  svg.append(path);
  return svg;
}

/** Returns the logo: two voices that meet. */
export function mark() {
  const svg = document.createElementNS(SVG, 'svg');
  svg.setAttribute('viewBox', '0 0 32 32');
  svg.setAttribute('aria-hidden', 'true');
  for (const [cx, token, opacity] of /** @type {[number, string, string][]} */ ([
    [12, 'var(--listen)', '0.9'],
    [20, 'var(--speak)', '0.75'],
  ])) {
    const circle = document.createElementNS(SVG, 'circle');
    circle.setAttribute('cx', String(cx));
    circle.setAttribute('cy', '16');
    circle.setAttribute('r', '9');
    circle.setAttribute('fill', token);
    circle.setAttribute('opacity', opacity);
    svg.append(circle);
  }
  return svg;
}
