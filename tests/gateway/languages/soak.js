// A client of the soak, on node-postgres: it notifies, and checks what all others send.
const {Client} = require('pg');
const [host, port, name] = process.argv.slice(2);
const client = new Client({host, port: Number(port), user: 'me', database: 'default'});
const last = {};
let number = 0;
const next = () => client.query("SELECT pg_notify('soak', $1)", [`${name} ${++number}`]);
client.on('notification', ({payload}) => {
  const [sender, text] = payload.split(' ');
  if (sender in last && Number(text) !== last[sender] + 1) {
    console.log('broken', `${sender}: ${text} after ${last[sender]}`);
    process.exit(3);
  }
  last[sender] = Number(text);
  if (sender === name) next();
});
client.connect().then(() => client.query('LISTEN soak')).then(next);
