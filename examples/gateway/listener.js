// A listener in JavaScript, by node-postgres as it comes from npm, on a gateway:
//
//     pynotify gateway app --directory /run/app &
//     node listener.js /run/app orders
//     pynotify notify orders hello --name app
//
// It ends when it hears "end".
const {Client} = require('pg');

const [host, channel = 'orders', port = '5432'] = process.argv.slice(2);
const client = new Client({host, port: Number(port), user: 'me', database: 'default'});

client.on('notification', (heard) => {
  console.log(JSON.stringify([heard.channel, heard.payload, heard.processId]));
  if (heard.payload === 'end') client.end();
});

(async () => {
  await client.connect();
  await client.query(`LISTEN ${client.escapeIdentifier(channel)}`);
  await client.query('SELECT pg_notify($1, $2)', [channel, 'from node']);
})();
