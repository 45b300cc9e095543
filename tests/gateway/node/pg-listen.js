// pg-listen on a gateway: what it hears of its own.
const createSubscriber = require('pg-listen').default;
const [host, port] = process.argv.slice(2);
const s = createSubscriber({host, port: Number(port), user: 'me', database: 'default'});
s.events.on('error', (e) => { console.error(e); process.exit(1); });
(async () => {
  const heard = [];
  await s.connect();
  await s.listenTo('a');
  const over = new Promise((done) => s.notifications.on('a', (p) => { heard.push(p); if (p.end) done(); }));
  await s.notify('a', {n: 1});
  await s.notify('a', {end: true});
  await over;
  console.log(JSON.stringify(heard));
  await s.close();
})();
