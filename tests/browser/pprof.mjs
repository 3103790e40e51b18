// node pprof.mjs FILE -> JSON of a pprof file: sample types, sums of their values, and of the labels named below.
import { readFileSync } from "node:fs";
import { gunzipSync } from "node:zlib";
import { Profile } from "pprof-format";

const profile = Profile.decode(gunzipSync(readFileSync(process.argv[2])));
const text = (index) => profile.stringTable.strings[Number(index)];
const functions = new Map(profile.function.map((it) => [Number(it.id), it]));
const locations = new Map(profile.location.map((it) => [Number(it.id), it]));
const samples = profile.sample.map((sample) => ({
  values: sample.value.map(Number),
  labels: Object.fromEntries(sample.label.map((it) => [text(it.key), text(it.str) || Number(it.num)])),
  frames: sample.locationId.map((id) => {
    const line = locations.get(Number(id)).line[0];
    const found = functions.get(Number(line.functionId));
    return [text(found.name), text(found.filename), Number(line.line)];
  }),
}));
const types = profile.sampleType.map((it) => [text(it.type), text(it.unit)]);
const files = profile.mapping.map((it) => text(it.filename));
process.stdout.write(JSON.stringify({ types, samples, files, default: text(profile.defaultSampleType) }));
