// Usage: node_peers.js server|client|endless PORT
// server: an HTTP server of two cluster workers on PORT and an echo server in the primary on PORT + 1; client: verifies.
'use strict';
const cluster = require('cluster');
const crypto = require('crypto');
const http = require('http');
const net = require('net');

const port = Number(process.argv[3]);
const sum = (bytes) => crypto.createHash('sha256').update(bytes).digest('hex');

function serve() {
  if (cluster.isPrimary) {
    let listening = 0;
    const echo = net.createServer({ allowHalfOpen: true }, (socket) => socket.on('error', () => {}).pipe(socket));
    const tell = () => { if (++listening === 3) console.log('ready'); };
    cluster.on('listening', tell);
    cluster.fork();
    cluster.fork();
    echo.listen(port + 1, '127.0.0.1', tell);
    process.on('SIGTERM', () => { echo.close(); cluster.disconnect(() => process.exit(0)); });
    return;
  }
  process.on('SIGTERM', () => {});
  http.createServer((request, response) => {
    const hash = crypto.createHash('sha256');
    request.on('data', (piece) => hash.update(piece));
    request.on('end', () => response.end(hash.digest('hex')));
  }).listen(port, '127.0.0.1');
}

function post(content, agent) {
  return new Promise((resolve, reject) => {
    const request = http.request({ host: '127.0.0.1', port, method: 'POST', agent }, (response) => {
      let text = '';
      response.on('data', (piece) => { text += piece; }).on('end', () => resolve(text));
    });
    request.on('error', reject).end(content);
  });
}

function echo(content) {
  return new Promise((resolve, reject) => {
    const pieces = [];
    const socket = net.connect({ port: port + 1, host: '127.0.0.1' });
    socket.on('data', (piece) => pieces.push(piece)).on('end', () => resolve(Buffer.concat(pieces))).on('error', reject);
    socket.end(content);
  });
}

async function check() {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 8 });
  const posts = Array.from({ length: 100 }, async (_, number) => {
    const content = crypto.randomBytes(number * 3001);
    const got = await post(content, number % 2 ? agent : undefined);
    if (got !== sum(content)) throw new Error(`post ${number}: ${got}`);
  });
  const echoes = Array.from({ length: 20 }, async (_, number) => {
    const content = crypto.randomBytes(number * 50021);
    const got = await echo(content);
    if (!got.equals(content)) throw new Error(`echo ${number}: ${got.length} bytes of ${content.length}`);
  });
  await Promise.all([...posts, ...echoes]);
  agent.destroy();
  console.log('correct');
}

function talkForever() {
  const socket = net.connect({ port: port + 1, host: '127.0.0.1' });
  let begun = false;
  socket.on('data', (piece) => {
    if (!begun) { begun = true; console.log('begun'); }
    socket.write(piece);
  });
  socket.on('close', () => process.exit(1));
  socket.on('error', () => {});
  socket.write(Buffer.alloc(30000));
}

({ server: serve, client: check, endless: talkForever })[process.argv[2]]();
