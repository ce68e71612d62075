import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.Executors;

/** Serves the directory over HTTP: Server HOST PORT. */
public class Server {
    public static void main(String[] args) throws Exception {
        HttpServer server = HttpServer.create(new InetSocketAddress(args[0], Integer.parseInt(args[1])), 128);
        server.createContext("/", exchange -> {
            byte[] body = Files.readAllBytes(Path.of("." + exchange.getRequestURI().getPath()));
            exchange.sendResponseHeaders(200, body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
        });
        server.setExecutor(Executors.newFixedThreadPool(4));
        server.start();
    }
}
