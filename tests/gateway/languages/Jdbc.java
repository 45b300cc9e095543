// pgjdbc on a gateway, by TCP: what it hears of its own, and an error's SQLSTATE.
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.List;
import org.postgresql.PGConnection;
import org.postgresql.PGNotification;

class Jdbc {
    public static void main(String[] arguments) throws SQLException {
        String url = "jdbc:postgresql://" + arguments[0] + ":" + arguments[1] + "/default?user=me";
        List<String> said = new ArrayList<>();
        try (Connection conn = DriverManager.getConnection(url);
                Statement statement = conn.createStatement()) {
            statement.execute("LISTEN a");
            try (PreparedStatement notify = conn.prepareStatement("SELECT pg_notify('a', ?)")) {
                notify.setString(1, "alone");
                notify.execute();
            }
            conn.setAutoCommit(false);
            statement.execute("NOTIFY a, 'never'");
            conn.rollback();
            statement.execute("NOTIFY a, 'in a transaction'");
            conn.commit();
            conn.setAutoCommit(true);
            try {
                statement.executeQuery("SELECT * FROM t");
            } catch (SQLException error) {
                said.add(error.getSQLState());
            }
            statement.execute("NOTIFY a, 'end'");
            while (!said.contains("end")) {
                PGNotification[] heard = conn.unwrap(PGConnection.class).getNotifications(10000);
                for (PGNotification each : heard)
                    said.add(each.getParameter());
            }
        }
        System.out.println("[\"" + String.join("\", \"", said) + "\"]");
    }
}
