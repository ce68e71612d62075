import java.net.URL;

/** GETs a URL twenty times and prints the number of bytes: Client URL. */
public class Client {
    public static void main(String[] args) throws Exception {
        long total = 0;
        for (int i = 0; i < 20; i++) {
            total += new URL(args[0]).openStream().readAllBytes().length;
        }
        System.out.println(total);
    }
}
