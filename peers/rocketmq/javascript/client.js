'use strict';
// A client with npm `ali-ons` that speaks the line protocol of peers/rocketmq/conversation.py.
// Arguments: nameServers role=producer|push group; topic tags=* retries=1 for consumers.

const readline = require('readline');
const { Consumer, Producer, Message } = require('ali-ons');
const httpclient = require('urllib');

const complain = (...words) => process.stderr.write(`${require('util').format(...words)}\n`);
const quiet = { info() {}, debug() {}, warn: complain, error: complain };
const text = value => (value === undefined || value === null ? '' : String(value));
const parsed = words => Object.fromEntries(words.map(word => [word.slice(0, word.indexOf('=')), word.slice(word.indexOf('=') + 1)]));

function say(event, fields = {}) {
  process.stdout.write([event, ...Object.entries(fields).map(([key, value]) => `${key}=${value}`)].join('\t') + '\n');
}

function message(command) {
  const made = new Message(command.topic, command.tag, command.body);
  if (command.tag === undefined) delete made.properties.TAGS;
  if (command.key !== undefined) made.keys = [command.key];
  if (command.delay !== undefined) made.delayTimeLevel = Number(command.delay);
  if (command.property !== undefined) made.properties.property = command.property;
  if (command.order !== undefined) made.shardingKey = command.order;
  return made;
}

async function send(producer, command) {
  if (command.bodies !== undefined) throw new Error('ali-ons has no batches');
  const result = await producer.send(message(command));
  if (result.sendStatus !== 'SEND_OK') throw new Error(result.sendStatus);
  say('sent', { id: result.msgId, queue: result.messageQueue.queueId, offset: result.queueOffset, place: '' });
}

async function produce(given) {
  const producer = new Producer({
    nameSrv: given.nameServers, producerGroup: given.group, logger: quiet, httpclient,
    sendMsgTimeout: 10000, pollNameServerInteval: 1000,
  });
  producer.on('error', complain);
  await producer.ready();
  say('ready');
  for await (const line of readline.createInterface({ input: process.stdin })) {
    if (line === 'close') break;
    try {
      await send(producer, parsed(line.split('\t').slice(1)));
    } catch (reason) {
      say('failed', { reason: String(reason).replace(/\s+/g, ' ') });
    }
  }
  await producer.close();
}

async function consume(given) {
  const consumer = new Consumer({
    nameSrv: given.nameServers, consumerGroup: given.group, logger: quiet, httpclient,
    consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET', maxReconsumeTimes: Number(given.retries || 1),
    pollNameServerInteval: 1000, rebalanceInterval: 1000,
  });
  consumer.on('error', complain);
  consumer.subscribe(given.topic, given.tags || '*', async received => {
    const body = received.body.toString();
    say('message', {
      queue: received.queueId, offset: received.queueOffset, tag: text(received.tags), key: text(received.keys),
      property: text(received.properties.property), times: received.reconsumeTimes, body,
    });
    // Not ACTION_RETRY: the client forgets that answer where the message was delivered again.
    if (body.startsWith('fail')) throw new Error('refused');
  });
  await consumer.ready();
  say('ready');
  for await (const line of readline.createInterface({ input: process.stdin })) {
    if (line === 'close') break;
  }
  await consumer.close();
}

const given = parsed(process.argv.slice(2));
(given.role === 'producer' ? produce(given) : consume(given)).then(() => {
  say('closed');
  process.exit(0);
}, reason => {
  process.stderr.write(`${reason && reason.stack}\n`);
  process.exit(1);
});
