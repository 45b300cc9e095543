// postgres.js on a gateway: what it hears of its own, by each way that it has to notify.
const postgres = require('postgres');
const [host, port] = process.argv.slice(2);
const sql = postgres({host, port: Number(port), user: 'me', database: 'default', onnotice: () => {}});
(async () => {
  const heard = [];
  await new Promise(async (done) => {
    await sql.listen('a', (payload) => { heard.push(payload); if (payload === 'end') done(); });
    await sql.notify('a', 'from postgres.js');
    await sql.begin(async (tx) => { await tx`SELECT pg_notify('a', ${'in a transaction'})`; });
    await sql`SELECT pg_notify('a', 'end')`;
  });
  console.log(JSON.stringify(heard));
  await sql.end();
})();
