// Axes: round numbers between two ends.

/** About `n` round steps within [low, high]. */
export function ticks(low: number, high: number, n: number): number[] {
  const rough = (high - low) / n || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((s) => s * power).find((s) => s >= rough) ?? 10 * power;
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high * (1 + 1e-9); i++) found.push(i * step);
  return found;
}

export interface Axis {
  (value: number): number;
  low: number;
  high: number;
  powers: number[];
}

/** A logarithmic axis from `from` to `to` pixels over whole powers of ten that hold all `values`. */
export function logAxis(values: number[], from: number, to: number): Axis {
  const low = Math.floor(Math.log10(Math.min(...values)) - 0.1);
  const high = Math.max(low + 1, Math.ceil(Math.log10(Math.max(...values)) + 0.1));
  const axis = (value: number) => from + ((Math.log10(value) - low) / (high - low)) * (to - from);
  const every = Math.ceil((high - low) / 8);
  const powers = [];
  for (let p = low; p <= high; p += every) powers.push(p);
  return Object.assign(axis, { low, high, powers });
}

/** Round sizes of memory on the axis. */
export function powersOfFour({ low, high }: Axis): number[] {
  const [first, last] = [Math.ceil(low / Math.log10(4)), Math.floor(high / Math.log10(4))];
  const every = Math.ceil((last - first + 1) / 8);
  const found = [];
  for (let p = first; p <= last; p += every) found.push(4 ** p);
  return found;
}
