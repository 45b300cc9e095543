# A client of the soak, on Ruby's pg: it notifies, and checks what all others send.
require 'pg'

host, port, name = ARGV
conn = PG.connect(host: host, port: port, user: 'me', dbname: 'default')
conn.exec('LISTEN soak')
last = {}
(1..).each do |number|
  conn.exec_params("SELECT pg_notify('soak', $1)", ["#{name} #{number}"])
  until last[name] == number
    conn.wait_for_notify do |_channel, _pid, payload|
      sender, text = payload.split
      if last.key?(sender) && text.to_i != last[sender] + 1
        puts "broken #{sender}: #{text} after #{last[sender]}"
        exit 3
      end
      last[sender] = text.to_i
    end
  end
end
