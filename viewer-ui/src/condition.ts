// Conditions of a filter where no server answers them: the part of SQL that people type, over the columns of the list.
import { Refused } from "./wire";

type Value = string | number | boolean | null;
type Row = Record<string, unknown>;
/** What is not known is null, as in SQL: it satisfies nothing, and its opposite neither. */
type Test = (row: Row) => boolean | null;

const TOKEN = /\s*(?:('(?:[^']|'')*')|(-?\d+(?:\.\d*)?(?:e[+-]?\d+)?|-?\.\d+(?:e[+-]?\d+)?)|([a-z_]\w*)|("[^"]+")|(<=|>=|<>|!=|==|[=<>(),]))/iy;
const WORDS = new Set(["and", "or", "not", "is", "null", "in", "like", "ilike", "between", "true", "false"]);

interface Token { kind: "literal" | "column" | "word"; text: string; value: Value }

function tokens(text: string): Token[] {
  const found: Token[] = [];
  TOKEN.lastIndex = 0;
  while (text.slice(TOKEN.lastIndex).trim()) {
    const from = TOKEN.lastIndex;
    const match = TOKEN.exec(text);
    if (!match) throw refused(`${text.slice(from).trim().slice(0, 40)} is not understood`);
    const [, quoted, number, name, column, sign] = match;
    const word = name?.toLowerCase() ?? "";
    if (quoted !== undefined) found.push({ kind: "literal", text: quoted, value: quoted.slice(1, -1).replaceAll("''", "'") });
    else if (number !== undefined) found.push({ kind: "literal", text: number, value: Number(number) });
    else if (word === "true" || word === "false") found.push({ kind: "literal", text: word, value: word === "true" });
    else if (column !== undefined || (name !== undefined && !WORDS.has(word))) found.push({ kind: "column", text: column?.slice(1, -1) ?? name!, value: null });
    else found.push({ kind: "word", text: sign ?? word, value: null });
  }
  return found;
}

const refused = (why: string): Refused => new Refused(400, `the filter: ${why}`, "");

/** What a filter chooses; a Refused that says what is wrong with it. */
export function condition(text: string, columns: Iterable<string>): (row: Row) => boolean {
  if (!text.trim()) return () => true;
  const known = new Set(columns);
  const left = tokens(text);
  const peek = (word: string): boolean => left[0]?.kind === "word" && left[0].text === word;
  const take = (word: string): boolean => peek(word) && left.shift() !== undefined;
  const need = (word: string): void => {
    if (!take(word)) throw refused(`${word} is missing${left[0] ? ` before ${left[0].text}` : ""}`);
  };
  const literal = (): Value => {
    const next = left.shift();
    if (next?.kind === "literal") return next.value;
    if (next?.text === "null") return null;
    throw refused(`a value is missing${next ? ` before ${next.text}` : ""}`);
  };

  function some(): Test {
    const parts = [every()];
    while (take("or")) parts.push(every());
    return (row) => either(parts.map((each) => each(row)), true);
  }
  function every(): Test {
    const parts = [one()];
    while (take("and")) parts.push(one());
    return (row) => either(parts.map((each) => each(row)), false);
  }
  function one(): Test {
    if (take("not")) return opposite(one());
    if (take("(")) {
      const inside = some();
      need(")");
      return inside;
    }
    const next = left.shift();
    if (next?.kind === "literal") return () => (next.value === null ? null : Boolean(next.value));
    if (next?.kind !== "column") throw refused(`a column is missing${next ? ` before ${next.text}` : ""}`);
    if (!known.has(next.text)) throw refused(`there is no column ${next.text}; there are ${[...known].join(", ")}`);
    return compared((row) => (row[next.text] ?? null) as Value);
  }
  function compared(value: (row: Row) => Value): Test {
    if (take("is")) {
      const isNot = take("not");
      const wanted = literal();
      return (row) => (value(row) === wanted) !== isNot;
    }
    if (take("not")) return opposite(among(value));
    if (peek("in") || peek("like") || peek("ilike") || peek("between")) return among(value);
    const sign = left[0]?.kind === "word" && COMPARE[left[0].text] ? left.shift()!.text : "";
    if (!sign) return (row) => (value(row) === null ? null : Boolean(value(row)));
    const wanted = literal();
    return (row) => compare(COMPARE[sign]!, value(row), wanted);
  }
  function among(value: (row: Row) => Value): Test {
    if (take("in")) {
      need("(");
      const wanted = [literal()];
      while (take(",")) wanted.push(literal());
      need(")");
      return (row) => (value(row) === null ? null : wanted.includes(value(row)));
    }
    if (take("between")) {
      const low = literal();
      need("and");
      const high = literal();
      return (row) => either([compare(COMPARE[">="]!, value(row), low), compare(COMPARE["<="]!, value(row), high)], false);
    }
    const ignoresCase = take("ilike");
    if (!ignoresCase) need("like");
    const pattern = String(literal()).replace(/[.*+?^${}()|[\]\\]/g, "\\$&").replaceAll("%", ".*").replaceAll("_", ".");
    const test = new RegExp(`^${pattern}$`, ignoresCase ? "is" : "s");
    return (row) => (value(row) === null ? null : test.test(String(value(row))));
  }

  const test = some();
  if (left.length) throw refused(`${left[0]!.text} is not understood here`);
  return (row) => test(row) === true;
}

const COMPARE: Record<string, (order: number) => boolean> = {
  "=": (order) => order === 0, "==": (order) => order === 0, "<>": (order) => order !== 0, "!=": (order) => order !== 0,
  "<": (order) => order < 0, "<=": (order) => order <= 0, ">": (order) => order > 0, ">=": (order) => order >= 0,
};

function compare(holds: (order: number) => boolean, value: Value, wanted: Value): boolean | null {
  if (value === null || wanted === null) return null;
  const [a, b] = typeof value === "string" || typeof wanted === "string" ? [String(value), String(wanted)] : [Number(value), Number(wanted)];
  return holds(a < b ? -1 : a > b ? 1 : 0);
}

/** Or (`wanted` is true) and and (it is false) of three values. */
function either(found: (boolean | null)[], wanted: boolean): boolean | null {
  return found.includes(wanted) ? wanted : found.includes(null) ? null : !wanted;
}

function opposite(test: Test): Test {
  return (row) => {
    const found = test(row);
    return found === null ? null : !found;
  };
}
