import java.io.InputStream;
import java.net.HttpURLConnection;
import java.net.URI;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicLong;

/** Eight threads GET /10k, every second time over a new connection. The output is that of the client "asker" of make compat. */
class LoadClient {
    static final AtomicLong right = new AtomicLong();
    static final Map<String, Long> wrong = new TreeMap<>();

    static void once(String url, boolean keep) throws Exception {
        var connection = (HttpURLConnection) URI.create(url).toURL().openConnection();
        connection.setConnectTimeout(30000);
        connection.setReadTimeout(30000);
        if (!keep) connection.setRequestProperty("Connection", "close");
        try (InputStream body = connection.getInputStream()) {
            if (body.readAllBytes().length != 10240) throw new IllegalStateException("answer with another body");
        }
    }

    static void print(long start, boolean done) {
        var kinds = new StringBuilder();
        synchronized (wrong) {
            wrong.forEach((kind, many) -> kinds.append(kinds.isEmpty() ? "" : ",").append("\"" + kind + "\":" + many));
        }
        System.out.printf("{\"right\":%d,\"left\":0,\"wrong\":{%s},\"seconds\":%s,\"done\":%b}%n", right.get(), kinds,
            (System.nanoTime() - start) / 1e9, done);
    }

    static String kind(Exception error) {
        String said = String.valueOf(error.getMessage());
        if (said.contains("refused")) return "refused";
        if (said.contains("reset") || said.contains("Broken pipe")) return "reset";
        if (said.contains("Unexpected end") || said.contains("Premature")) return "closed";
        if (said.contains("timed out")) return "hung";
        return said.replaceAll("[^A-Za-z0-9 ]", " ");
    }

    public static void main(String[] args) throws Exception {
        String to = "";
        long requests = 0;
        for (int i = 0; i + 1 < args.length; i++) {
            if (args[i].equals("--to")) to = args[i + 1];
            if (args[i].equals("--requests")) requests = Long.parseLong(args[i + 1]);
        }
        String url = "http://" + to + "/10k";
        long start = System.nanoTime();
        var left = new AtomicLong(requests);
        var threads = new Thread[8];
        for (int i = 0; i < threads.length; i++) {
            boolean keep = i % 2 == 0;
            threads[i] = new Thread(() -> {
                while (left.getAndDecrement() > 0) {
                    while (true) {
                        try {
                            once(url, keep);
                            right.incrementAndGet();
                            break;
                        } catch (Exception error) {
                            synchronized (wrong) {
                                wrong.merge(kind(error), 1L, Long::sum);
                            }
                            try {
                                Thread.sleep(10);
                            } catch (InterruptedException none) {
                                return;
                            }
                        }
                    }
                }
            });
            threads[i].start();
        }
        for (var thread : threads) {
            while (thread.isAlive()) {
                thread.join(100);
                print(start, false);
            }
        }
        print(start, true);
        System.exit(0);
    }
}
