// pg-listen on a gateway that is stopped and started again: it connects again by itself.
const createSubscriber = require('pg-listen').default;
const [host, port] = process.argv.slice(2);
const where = {host, port: Number(port), user: 'me', database: 'default'};
const s = createSubscriber(where, {retryInterval: 20, retryLimit: Infinity, retryTimeout: 60000});
s.events.on('error', (e) => { console.error(e); process.exit(1); });
s.events.on('reconnect', () => console.log('again'));
s.notifications.on('a', async (payload) => {
  console.log(JSON.stringify(payload));
  if (payload === 'end') {
    await s.close();
  }
});
(async () => {
  await s.connect();
  await s.listenTo('a');
  console.log('listening');
})();
