// Trees of stacks as columns of numbers: made, and numbered so that what is below a node stands together.

// What is asked of a tree. The children of a node stand together. Slots are places in depth-first order: those below a
// node are from slotBegin to slotEnd.
export function treeOf(nodeParent, nodeFrame, placeNode, spanPlace) {
  const count = nodeParent.length;
  const [firstChild, childCount, slotBegin, slotEnd] = [0, 1, 2, 3].map(() => new Uint32Array(count));
  for (let place = 0; place < placeNode.length; place++) slotBegin[placeNode[place]]++; // how many, until they are numbered
  for (let node = count - 1; node > 0; node--) {
    const parent = nodeParent[node];
    firstChild[parent] = node;
    childCount[parent]++;
    slotBegin[parent] += slotBegin[node];
  }
  slotBegin[0] = 0;
  for (let node = 1; node < count; node++) {
    const parent = nodeParent[node];
    const begin = slotEnd[parent];
    slotEnd[parent] += slotBegin[node];
    slotBegin[node] = slotEnd[node] = begin;
  }
  const slotOf = Uint32Array.from(placeNode, (node) => slotEnd[node]++); // its own after those of its children
  const slotNode = new Uint32Array(placeNode.length);
  for (let place = 0; place < placeNode.length; place++) slotNode[slotOf[place]] = placeNode[place];
  const spanSlot = spanPlace.map((place) => slotOf[place]);
  return { nodeParent, nodeFrame, firstChild, childCount, slotBegin, slotEnd, slotNode, spanSlot };
}

// Nodes of a tree that is made here, in any order but each after the one above it.
export class Nodes {
  constructor() {
    this.count = 1;
    this.parent = new Uint32Array(65_536);
    this.frame = new Uint32Array(65_536);
    this.table = new Uint32Array(262_144); // nodes by hash; the root is below none
  }

  add(parent, frame) {
    if (this.count === this.parent.length) {
      for (const column of ["parent", "frame"]) {
        const larger = new Uint32Array(2 * this.count);
        larger.set(this[column]);
        this[column] = larger;
      }
    }
    this.parent[this.count] = parent;
    this.frame[this.count] = frame;
    return this.count++;
  }

  // The node of a frame below another one.
  child(parent, frame) {
    const at = this.placeFor(parent, frame);
    if (this.table[at]) return this.table[at];
    this.table[at] = this.add(parent, frame);
    if (4 * this.count > this.table.length) this.enlarge();
    return this.count - 1;
  }

  placeFor(parent, frame) {
    const { table } = this;
    let at = (Math.imul(parent, 0x9e3779b1) + Math.imul(frame, 0x85ebca77)) >>> 0;
    at = (at ^ (at >>> 15)) & (table.length - 1);
    while (table[at] && (this.parent[table[at]] !== parent || this.frame[table[at]] !== frame)) at = (at + 1) & (table.length - 1);
    return at;
  }

  enlarge() {
    this.table = new Uint32Array(2 * this.table.length);
    for (let node = 1; node < this.count; node++) this.table[this.placeFor(this.parent[node], this.frame[node])] = node;
  }

  // Level by level, so that the children of a node stand together. placeNode: nodes as they are numbered here.
  tree(placeNode, spanPlace) {
    const { count, parent, frame } = this;
    const first = new Uint32Array(count + 1);
    for (let node = 1; node < count; node++) first[parent[node] + 1]++;
    for (let node = 0; node < count; node++) first[node + 1] += first[node];
    const children = new Uint32Array(count - 1);
    const filled = first.slice();
    for (let node = 1; node < count; node++) children[filled[parent[node]]++] = node;
    const [order, place] = [new Uint32Array(count), new Uint32Array(count)];
    let end = 1;
    for (let at = 0; at < count; at++) {
      place[order[at]] = at;
      for (let i = first[order[at]]; i < first[order[at] + 1]; i++) order[end++] = children[i];
    }
    return treeOf(order.map((node) => place[parent[node]]), order.map((node) => frame[node]), Uint32Array.from(placeNode, (node) => place[node]), spanPlace);
  }
}
