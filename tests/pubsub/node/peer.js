'use strict';
// A peer of pynotify.PubSub on node-postgres, written from tests/vectors/pubsub.json.
//
//   node peer.js vectors FILE   every row of the vectors; prints how many held
//   node peer.js echo DSN IN OUT    publishes on OUT what arrives on IN, until a text "end"
//   node peer.js send DSN CHANNEL   publishes the objects that come on stdin, a line of JSON each
//
// Bytes are Buffers, nothing is undefined, null is JSON null.

const fs = require('fs');
const readline = require('readline');

const PLAIN = /^[\x20-\x7e]*$/;
const BASE64 = /^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/;
const PIECE = /^[A-Za-z0-9+/]*={0,2}$/;
const LIMIT = 7999;

function container(object) {
  if (object === undefined) return null;
  if (typeof object === 'string') return Buffer.from('!' + object);
  if (Buffer.isBuffer(object)) return Buffer.concat([Buffer.from('%'), object]);
  return Buffer.from('@' + JSON.stringify(object));
}

function segments(object, limit = LIMIT) {
  const whole = container(object);
  if (whole === null) return [''];
  if (whole.length <= limit && PLAIN.test(whole.toString('latin1'))) return [whole.toString()];
  const encoded = whole.toString('base64');
  const found = [];
  for (let at = 0; at < encoded.length; at += limit - 1) {
    const last = at + limit - 1 >= encoded.length;
    found.push((last ? '$' : '#') + encoded.slice(at, at + limit - 1));
  }
  return found;
}

const strict = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

function contents(whole) {
  const rest = whole.subarray(1);
  switch (String.fromCharCode(whole[0])) {
    case '!': return strict.decode(rest);
    case '@': return JSON.parse(strict.decode(rest));
    case '%': return rest;
    default: throw new Error('no flag');
  }
}

// From the segments of any senders to objects; take() returns [object], or [] when there is none.
class Assembler {
  constructor() {
    this.pending = new Map(); // null: given up, its last piece is still to come
    this.malformed = 0;
  }

  take(sender, payload) {
    try {
      if (payload === '') return [undefined];
      const flag = payload[0];
      if (flag !== '#' && flag !== '$') return [contents(Buffer.from(payload))];
      return this.piece(sender, payload.slice(1), flag === '$');
    } catch (error) {
      this.malformed += 1;
      return [];
    }
  }

  piece(sender, piece, last) {
    const begun = this.pending.get(sender);
    this.pending.delete(sender);
    if (begun === null) {
      if (!last) this.pending.set(sender, null);
      return [];
    }
    const before = begun === undefined ? [] : begun;
    const padded = before.length > 0 && before.some((one) => one.endsWith('='));
    const joint = padded ? before.join('') + piece : piece;
    if (!PIECE.test(piece) || (padded && piece !== '' && !BASE64.test(joint))) {
      if (begun !== undefined && !last) this.pending.set(sender, null);
      throw new Error('not base64');
    }
    before.push(piece);
    if (!last) {
      this.pending.set(sender, before);
      return [];
    }
    const encoded = before.join('');
    if (encoded === '' || !BASE64.test(encoded)) throw new Error('not base64');
    return [contents(Buffer.from(encoded, 'base64'))];
  }
}

class PubSub {
  constructor(client) {
    this.client = client;
    this.assembler = new Assembler();
    this.handlers = new Map();
    this.sending = Promise.resolve();
    client.on('notification', ({ channel, payload, processId }) => {
      for (const object of this.assembler.take(`${processId} ${channel}`, payload)) {
        const handler = this.handlers.get(channel);
        if (handler) handler(object);
      }
    });
  }

  async subscribe(channel, handler) {
    this.handlers.set(channel, handler);
    await this.client.query(`LISTEN "${channel.replace(/"/g, '""')}"`);
  }

  // Each segment is a transaction of its own; one object after the other.
  publish(channel, object) {
    const send = async () => {
      for (const segment of segments(object)) {
        await this.client.query('SELECT pg_notify($1, $2)', [channel, segment]);
      }
    };
    this.sending = this.sending.then(send);
    return this.sending;
  }
}

// ---- the vectors --------------------------------------------------------------------------------

const runs = (list) => list.map(([text, times]) => text.repeat(times)).join('');

function value(row) {
  const times = row.times === undefined ? 1 : row.times;
  if ('none' in row) return undefined;
  if ('text' in row) return row.text.repeat(times);
  if ('bytes' in row) return Buffer.from(row.bytes.repeat(times), 'hex');
  if ('member' in row) return { [row.member[0]]: row.member[1].repeat(row.member[2]) };
  return row.json;
}

function expected(row) {
  if (!row.pieces) return row.segments.map((one) => (one.runs ? runs(one.runs) : one));
  let encoded = runs(row.base64);
  const found = [];
  for (const [length, times] of row.pieces) {
    for (let i = 0; i < times; i += 1) {
      found.push('#' + encoded.slice(0, length));
      encoded = encoded.slice(length);
    }
  }
  found.push('$' + found.pop().slice(1));
  return found;
}

const same = require('util').isDeepStrictEqual;

function assemble(payloads) {
  const assembler = new Assembler();
  return [payloads.flatMap((payload) => assembler.take('', payload)), assembler.malformed];
}

// -0 is written as 0.
const written = (object) =>
  object === undefined || typeof object === 'string' || Buffer.isBuffer(object)
    ? object : JSON.parse(JSON.stringify(object));

function checkVectors(file) {
  const vectors = JSON.parse(fs.readFileSync(file, 'utf8'));
  const wrong = [];
  let held = 0;
  const check = (name, found, wanted) => {
    if (same(found, wanted)) held += 1;
    else wrong.push(name);
  };
  for (const row of vectors.sent) {
    const object = value(row.value);
    check(`${row.name}, sent`, segments(object, row.limit || vectors.limit), expected(row));
    check(`${row.name}, received`, assemble(expected(row)), [[written(object)], 0]);
  }
  for (const row of [...vectors.accepted, ...vectors.malformed]) {
    check(row.name, assemble(row.payloads), [row.values.map(value), row.count || 0]);
  }
  console.log(JSON.stringify({ held, wrong }));
}

// ---- over PostgreSQL ----------------------------------------------------------------------------

async function connected(dsn) {
  const { Client } = require('pg');
  const settings = Object.fromEntries(dsn.split(' ').map((word) => word.split('=')));
  const client = new Client({
    host: settings.host, user: settings.user, database: settings.dbname,
  });
  await client.connect();
  return client;
}

async function echo(dsn, from, to) {
  const [listening, sending] = [await connected(dsn), await connected(dsn)];
  const answers = new PubSub(sending);
  const pubsub = new PubSub(listening);
  await pubsub.subscribe(from, async (object) => {
    if (object === 'end') {
      await answers.sending;
      console.log(JSON.stringify({ malformed: pubsub.assembler.malformed }));
      await Promise.all([listening.end(), sending.end()]);
    } else {
      answers.publish(to, object);
    }
  });
  console.log('ready');
}

async function send(dsn, channel) {
  const client = await connected(dsn);
  const pubsub = new PubSub(client);
  for await (const line of readline.createInterface({ input: process.stdin })) {
    await pubsub.publish(channel, value(JSON.parse(line)));
  }
  await client.end();
}

const [command, ...rest] = process.argv.slice(2);
const commands = { vectors: checkVectors, echo, send };
Promise.resolve(commands[command](...rest)).catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
