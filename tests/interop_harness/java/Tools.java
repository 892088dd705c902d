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
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs the main methods of Kafka's command-line tools in one JVM, several at once: to start a JVM for each costs a second or two.
 *
 * Lines in:  run ID CLASS INPUT ARGUMENT...   and   stop ID   (INPUT and ARGUMENT in base64, "-" when empty)
 * Lines out: ID out|err BYTES   and   ID exit CODE   (BYTES in base64)
 *
 * Each tool has a thread group: what its threads print is its output, and its exit ends the thread that asked for it.
 */
public final class Tools {
    private static final PrintStream ANSWERS = System.out;
    private static final Map<String, Tool> RUNNING = new ConcurrentHashMap<>();

    private static final class Exited extends Error {
        final int code;

        Exited(int code) {
            super(null, null, false, false);
            this.code = code;
        }
    }

    private static final class Tool extends ThreadGroup {
        final InputStream input;
        final List<Runnable> hooks = new CopyOnWriteArrayList<>();

        Tool(String id, byte[] input) {
            super(id);
            this.input = new ByteArrayInputStream(input);
        }

        void exit(int code) {
            RUNNING.remove(getName());
            System.out.flush();
            System.err.flush();
            answer(getName() + " exit " + code);
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
            if (tool != null) {
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
        String[] arguments = new String[words.length - 4];
        for (int i = 0; i < arguments.length; i++) {
            arguments[i] = new String(decode(words[i + 4]), StandardCharsets.UTF_8);
        }
        Tool tool = new Tool(words[1], decode(words[3]));
        RUNNING.put(words[1], tool);
        Thread thread = new Thread(tool, () -> run(tool, words[2], arguments));
        thread.setDaemon(true);
        thread.start();
    }

    private static void run(Tool tool, String main, String[] arguments) {
        int code = 0;
        try {
            Class.forName(main).getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (InvocationTargetException raised) {
            Throwable cause = raised.getCause();
            if (cause instanceof Exited) {
                code = ((Exited) cause).code;
            } else {
                cause.printStackTrace();
                code = 1;
            }
        } catch (ReflectiveOperationException wrong) {
            wrong.printStackTrace();
            code = 1;
        }
        tool.exit(code);
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
            throw new Exited(code);
        };
        Exit.setExitProcedure(exit);
        Exit.setHaltProcedure(exit);
        Exit.setShutdownHookAdder((name, hook) -> {
            Tool tool = current();
            if (tool != null) {
                tool.hooks.add(hook);
            }
        });
        BufferedReader lines = new BufferedReader(new InputStreamReader(commands, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            if (words[0].equals("run")) {
                start(words);
            } else if (words[0].equals("stop")) {
                Tool tool = RUNNING.get(words[1]);
                if (tool != null) {
                    // The hook of a tool waits for its main thread, which then ends by itself.
                    Thread stopper = new Thread(tool, () -> tool.hooks.forEach(Runnable::run));
                    stopper.setDaemon(true);
                    stopper.start();
                }
            }
        }
        System.exit(0);
    }
}
