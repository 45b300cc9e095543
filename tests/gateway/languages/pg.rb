# Ruby's pg on a gateway: what it hears of its own, and an error's SQLSTATE.
require 'json'
require 'pg'

host, port = ARGV
conn = PG.connect(host: host, port: port, user: 'me', dbname: 'default')
conn.exec('LISTEN a')
conn.exec_params("SELECT pg_notify('a', $1)", ['alone'])
begin
  conn.transaction do
    conn.exec("NOTIFY a, 'never'")
    raise ArgumentError
  end
rescue ArgumentError
  conn.transaction { conn.exec("NOTIFY a, 'in a transaction'") }
end
said = []
begin
  conn.exec('SELECT * FROM t')
rescue PG::Error => e
  said << e.result.error_field(PG::Result::PG_DIAG_SQLSTATE)
end
conn.exec("NOTIFY a, 'end'")
loop do
  conn.wait_for_notify(10) { |_channel, _pid, payload| said << payload }
  break if said.last == 'end'
end
puts JSON.generate(said)
