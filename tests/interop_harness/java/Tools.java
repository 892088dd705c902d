import java.io.ByteArrayOutputStream;
import java.io.ByteArrayInputStream;
import java.io.BufferedReader;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs the main methods of Kafka's command-line tools in one JVM, several at once: to start a JVM for each costs a second or two.
 *
 * Lines in:  ID CLASS INPUT ARGUMENT...   (INPUT and ARGUMENT in base64, "-" when empty)
 * Lines out: ID out|err BYTES   and   ID exit CODE   (BYTES in base64)
 *
 * Each tool has a thread group: what its threads print is its output. The first exit that it asks for counts, and it is
 * silent from there on, as a process would be: some tools would catch what ends their thread, and complain.
 */
public final class Tools {
    private static final PrintStream ANSWERS = System.out;

    private static final class Exited extends Error {
        Exited() {
            super(null, null, false, false);
        }
    }

    private static final class Tool extends ThreadGroup {
        final InputStream input;
        private Integer code;

        Tool(String id, byte[] input) {
            super(id);
            this.input = new ByteArrayInputStream(input);
        }

        synchronized boolean exited() {
            return code != null;
        }

        synchronized void exit(int wanted) {
            if (code == null) {
                System.out.flush();
                System.err.flush();
                code = wanted;
            }
        }

        @Override
        public void uncaughtException(Thread thread, Throwable error) {
            if (!(error instanceof Exited)) {
                error.printStackTrace();
            }
        }
    }

    /** Bytes go to the tool whose thread writes them, line by line. */
    private static final class Routed extends OutputStream {
        private final String name;
        private final Map<Tool, ByteArrayOutputStream> pending = new ConcurrentHashMap<>();

        Routed(String name) {
            this.name = name;
        }

        @Override
        public void write(int one) {
            write(new byte[] {(byte) one}, 0, 1);
        }

        @Override
        public synchronized void write(byte[] bytes, int offset, int length) {
            Tool tool = current();
            if (tool != null && !tool.exited()) {
                pending.computeIfAbsent(tool, key -> new ByteArrayOutputStream()).write(bytes, offset, length);
            }
        }

        @Override
        public synchronized void flush() {
            Tool tool = current();
            ByteArrayOutputStream bytes = tool == null ? null : pending.remove(tool);
            if (bytes != null && bytes.size() > 0) {
                answer(tool.getName() + " " + name + " " + Base64.getEncoder().encodeToString(bytes.toByteArray()));
            }
        }
    }

    private static Tool current() {
        for (ThreadGroup group = Thread.currentThread().getThreadGroup(); group != null; group = group.getParent()) {
            if (group instanceof Tool) {
                return (Tool) group;
            }
        }
        return null;
    }

    private static void answer(String line) {
        synchronized (ANSWERS) {
            ANSWERS.println(line);
            ANSWERS.flush();
        }
    }

    private static byte[] decode(String word) {
        return word.equals("-") ? new byte[0] : Base64.getDecoder().decode(word);
    }

    private static void start(String[] words) {
        String[] arguments = new String[words.length - 3];
        for (int i = 0; i < arguments.length; i++) {
            arguments[i] = new String(decode(words[i + 3]), StandardCharsets.UTF_8);
        }
        Tool tool = new Tool(words[0], decode(words[2]));
        Thread thread = new Thread(tool, () -> run(tool, words[1], arguments));
        thread.setDaemon(true);
        thread.start();
    }

    private static void run(Tool tool, String main, String[] arguments) {
        try {
            Class.forName(main).getMethod("main", String[].class).invoke(null, (Object) arguments);
            tool.exit(0);
        } catch (InvocationTargetException raised) {
            if (!(raised.getCause() instanceof Exited)) {
                raised.getCause().printStackTrace();
            }
            tool.exit(1);
        } catch (ReflectiveOperationException wrong) {
            wrong.printStackTrace();
            tool.exit(1);
        }
        answer(tool.getName() + " exit " + tool.code);
    }

    public static void main(String[] none) throws Exception {
        InputStream commands = System.in;
        System.setOut(new PrintStream(new Routed("out"), true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(new Routed("err"), true, StandardCharsets.UTF_8));
        System.setIn(new InputStream() {
            @Override
            public int read() throws java.io.IOException {
                Tool tool = current();
                return tool == null ? -1 : tool.input.read();
            }

            @Override
            public int read(byte[] bytes, int offset, int length) throws java.io.IOException {
                Tool tool = current();
                return tool == null ? -1 : tool.input.read(bytes, offset, length);
            }
        });
        Exit.Procedure exit = (code, message) -> {
            if (message != null) {
                System.err.println(message);
            }
            Tool tool = current();
            if (tool != null) {
                tool.exit(code);
            }
            throw new Exited();
        };
        Exit.setExitProcedure(exit);
        Exit.setHaltProcedure(exit);
        Exit.setShutdownHookAdder((name, hook) -> { });
        BufferedReader lines = new BufferedReader(new InputStreamReader(commands, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            start(line.split(" "));
        }
        System.exit(0);
    }
}
