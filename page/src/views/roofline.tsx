// Kernels between memory and arithmetic. Where their times are known: flops per second over flops per byte, below the rates
// that the fastest of them reach. Else flops over bytes, with a diagonal for each intensity.
import { bytes, flops, intensity, rate } from "../format";
import { logAxis, powersOfFour, type Axis } from "../parts/scale";
import { href } from "../route";
import type { Row } from "./kernels";

const WIDTH = 720;
const HEIGHT = 300;
const [LEFT, RIGHT, TOP, BOTTOM] = [92, 28, 12, 44];

interface Point {
  row: Row;
  x: number;
  y: number;
}

const known = (row: Row): boolean => !!row.moved && !!row.kernel.flops;

export function Roofline({ rows, chosen }: { rows: Row[]; chosen: Row | null }) {
  const placed = rows.filter(known);
  const timed = placed.filter((row) => row.kernel.us && row.kernel.bytes_per_second);
  if (!placed.length) return <p class="empty">No kernel has both flops and bytes known, so there is no roofline.</p>;
  const byTime = timed.length > 0;
  const points: Point[] = byTime
    ? timed.map((row) => ({ row, x: row.intensity!, y: row.kernel.flops! / (row.kernel.us! * 1e-6) }))
    : placed.map((row) => ({ row, x: row.moved!, y: row.kernel.flops! }));
  const x = logAxis(points.map((p) => p.x), LEFT, WIDTH - RIGHT);
  const y = logAxis(points.map((p) => p.y), HEIGHT - BOTTOM, TOP);
  const left = rows.length - points.length;
  return (
    <figure>
      <svg class="chart roofline" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="group" aria-label="Roofline position of the kernels">
        <clipPath id="plot">
          <rect x={LEFT} y={TOP} width={WIDTH - LEFT - RIGHT} height={HEIGHT - TOP - BOTTOM} />
        </clipPath>
        <Grid x={x} y={y} binary={!byTime} labels={byTime ? [intensity, rate] : [bytes, flops]} />
        <g clip-path="url(#plot)">{byTime ? <Roofs x={x} y={y} points={points} /> : <Diagonals x={x} y={y} points={points} />}</g>
        <text class="title" x={(LEFT + WIDTH - RIGHT) / 2} y={HEIGHT - 6} text-anchor="middle">
          {byTime ? "flops per byte" : "bytes read and written"}
        </text>
        <text class="title" transform={`translate(14 ${(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)`} text-anchor="middle">
          {byTime ? "flops per second" : "flops"}
        </text>
        {points.map(({ row, x: px, y: py }) => (
          <a
            href={href("kernels", row.index)}
            aria-label={`${row.kernel.name}: ${bytes(row.moved)}, ${flops(row.kernel.flops)} flops, ${intensity(row.intensity)} flops per byte`}
          >
            <circle
              class={`point ${row.kernel.kind} ${row.index === chosen?.index ? "chosen" : ""}`}
              cx={x(px)}
              cy={y(py)}
              r={row.index === chosen?.index ? 6 : 4}
            >
              <title>{row.kernel.name}</title>
            </circle>
          </a>
        ))}
      </svg>
      <figcaption>
        <span class="swatch generated" aria-hidden="true" /> generated <span class="swatch extern" aria-hidden="true" /> from a library.
        {left > 0 && <span> Not drawn: {left} without flops, bytes{byTime ? " or a time" : ""}.</span>}
        {byTime && <span> Dashed: the highest rates that these kernels reach, of memory and of arithmetic.</span>}
      </figcaption>
    </figure>
  );
}

type Label = (value: number | null) => string;

/** `binary`: whether sizes of memory lie along x. */
function Grid({ x, y, binary, labels }: { x: Axis; y: Axis; binary: boolean; labels: [Label, Label] }) {
  return (
    <g>
      {(binary ? powersOfFour(x) : x.powers.map((p) => 10 ** p)).map((value) => (
        <g>
          <line class="grid" x1={x(value)} x2={x(value)} y1={TOP} y2={HEIGHT - BOTTOM} />
          <text x={x(value)} y={HEIGHT - BOTTOM + 16} text-anchor="middle">
            {labels[0](value)}
          </text>
        </g>
      ))}
      {y.powers.map((p) => (
        <g>
          <line class="grid" x1={LEFT} x2={WIDTH - RIGHT} y1={y(10 ** p)} y2={y(10 ** p)} />
          <text x={LEFT - 8} y={y(10 ** p) + 4} text-anchor="end">
            {labels[1](10 ** p)}
          </text>
        </g>
      ))}
    </g>
  );
}

/** Of the intensities that there are, and no others: the plane has room for many more. */
function Diagonals({ x, y, points }: { x: Axis; y: Axis; points: Point[] }) {
  const powers = points.map((p) => Math.log10(p.y / p.x));
  const found = [];
  for (let p = Math.floor(Math.min(...powers)); p <= Math.ceil(Math.max(...powers)); p++) found.push(p);
  return (
    <>
      {found.map((p) => {
        const [low, high] = [Math.max(x.low, y.low - p), Math.min(x.high, y.high - p)];
        if (high - low < 0.5) return null;
        return (
          <g>
            <line class="guide" x1={x(10 ** low)} y1={y(10 ** (low + p))} x2={x(10 ** high)} y2={y(10 ** (high + p))} />
            <text class="guide-text" x={x(10 ** high) - 4} y={y(10 ** (high + p)) + 14} text-anchor="end">
              {intensity(10 ** p)} flops/B
            </text>
          </g>
        );
      })}
    </>
  );
}

function Roofs({ x, y, points }: { x: Axis; y: Axis; points: Point[] }) {
  const memory = Math.max(...points.map((p) => p.y / p.x)); // bytes per second
  const arithmetic = Math.max(...points.map((p) => p.y));
  const ridge = arithmetic / memory;
  const start = 10 ** x.low;
  return (
    <path
      class="roof"
      d={`M${x(start)} ${y(start * memory)}L${x(ridge)} ${y(arithmetic)}H${x(10 ** x.high)}`}
      fill="none"
    />
  );
}
