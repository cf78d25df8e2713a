// Where the reader is: the part of the address after `#`, so that back, forward and links work in a file that was mailed.
import { useEffect, useState } from "preact/hooks";

export interface Route {
  view: string;
  rest: string[];
}

export const href = (view: string, ...rest: (string | number)[]): string =>
  "#" + [view, ...rest].map((part) => encodeURIComponent(String(part))).join("/");

function parse(): Route {
  const [view, ...rest] = location.hash.slice(1).split("/").map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part; // an address that someone cut short
    }
  });
  return { view: view || "overview", rest };
}

export function useRoute(): Route {
  const [route, set] = useState(parse);
  useEffect(() => {
    const changed = () => set(parse());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}
