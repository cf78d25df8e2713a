// Numbers and places as people read them: two or three digits, units that fit.

const digits = (value: number): string => {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 100) return Math.round(value).toLocaleString("en-US");
  return value.toPrecision(size >= 1 ? 3 : 2).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
};

function scaled(value: number, step: number, units: string[]): string {
  let at = 0;
  while (Math.abs(value) >= step && at < units.length - 1) {
    value /= step;
    at += 1;
  }
  return `${digits(value)}\u00a0${units[at]}`;
}

export const ms = (value: number | null): string =>
  value == null ? "\u2013" : value >= 1000 ? `${digits(value / 1000)}\u00a0s` : `${digits(value)}\u00a0ms`;
export const us = (value: number | null): string =>
  value == null ? "\u2013" : value >= 1000 ? ms(value / 1000) : `${digits(value)}\u00a0\u00b5s`;
export const bytes = (value: number | null): string =>
  value == null ? "\u2013" : scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);
export const flops = (value: number | null): string =>
  value == null ? "\u2013" : scaled(value, 1000, ["", "k", "M", "G", "T"]).trim();
export const rate = (value: number | null): string =>
  value == null ? "\u2013" : scaled(value, 1000, ["flop/s", "kflop/s", "Mflop/s", "Gflop/s", "Tflop/s"]);
export const bandwidth = (value: number | null): string =>
  value == null ? "\u2013" : scaled(value / 1e6, 1000, ["MB/s", "GB/s", "TB/s"]);
export const intensity = (value: number | null): string => (value == null ? "\u2013" : digits(value));
export const count = (n: number, one: string, many = one + "s"): string =>
  `${n.toLocaleString("en-US")}\u00a0${n === 1 ? one : many}`;
/** The end of a path: enough to tell files apart at a glance; the whole of it is in a tooltip. */
export const base = (file: string): string => file.split(/[\\/]/).pop() || file;
