package gotower_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/internal/freeport"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/tappb"
)

// TestReadme builds and runs each Go block of README.md. The names of services are replaced
// by the addresses of test servers, and the listening addresses by free ones. The blocks are
// functions of one program, in files of their own, because linking takes the longest. The
// short form only compiles them.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindAllStringSubmatch(string(text), -1)
	require.Len(t, blocks, 3)
	addr, tapAddr := freeport.Addr(t), freeport.Addr(t)
	replaced := strings.NewReplacer(`":8080"`, `"`+addr+`"`, "tap.DefaultAddress", `"`+tapAddr+`"`,
		"web.default.svc.cluster.local:80", namedServer(t, "web"), "books.default.svc.cluster.local:80", namedServer(t, "books"))
	tests := []struct {
		name     string
		maxLines int
		imports  string
		end      string // follows the block
		check    func(t *testing.T, output func() string)
	}{
		{
			"client", 5, `context fmt io net/http github.com/gotower/gotower/httpclient`,
			`if err != nil { panic(err) }; text, _ := io.ReadAll(rsp.Body); fmt.Println(rsp.StatusCode, string(text))`,
			func(t *testing.T, output func() string) {
				t.Helper()
				require.Eventually(t, func() bool { return strings.Contains(output(), "200 web /hello") }, time.Minute, time.Millisecond, output())
			},
		},
		{
			"gateway", 15, `context log net/http os github.com/gotower/gotower/discover github.com/gotower/gotower/httpclient github.com/gotower/gotower/layer/httplayer`, "",
			func(t *testing.T, output func() string) {
				t.Helper()
				assert.Equal(t, "200 web /", fetchURL(t, "http://"+addr+"/"))
				assert.Equal(t, "200 books /books/1", fetchURL(t, "http://"+addr+"/books/1"))
				require.Eventually(t, func() bool { return strings.Contains(output(), `/books/1`) }, time.Minute, time.Millisecond, "access log")
			},
		},
		{
			"server", 3, `context log net/http github.com/gotower/gotower/layer/httplayer github.com/gotower/gotower/tap`, "",
			func(t *testing.T, _ func() string) {
				t.Helper()
				cc, err := grpc.NewClient(tapAddr, grpc.WithTransportCredentials(insecure.NewCredentials()))
				require.NoError(t, err)
				t.Cleanup(func() { cc.Close() })
				every := &tappb.TopRequest{Every: durationpb.New(100 * time.Millisecond)}
				for top, err := range tap.Top(t.Context(), cc, every, grpc.WaitForReady(true)) {
					require.NoError(t, err)
					if len(top.GetRows()) > 0 {
						assert.Equal(t, "/watched", top.GetRows()[0].GetPath())
						break
					}
					assert.Equal(t, "200 mux", fetchURL(t, "http://"+addr+"/watched"))
				}
			},
		},
	}
	dir := t.TempDir()
	full, clause := os.Getenv("GOTOWER_TESTS") == "full", "package main\n"
	if !full {
		clause = "package readme\n" // it is not linked
	}
	files := map[string]string{"main": clause + `
import (
	"context"
	"os"
)

func main() {
	map[string]func(context.Context){"client": client, "gateway": gateway, "server": server}[os.Args[1]](context.Background())
}
`}
	for i, tt := range tests {
		code := blocks[i][1]
		assert.LessOrEqual(t, strings.Count(code, "\n"), tt.maxLines, "lines of %s", tt.name)
		source := clause + "import (\n"
		for path := range strings.FieldsSeq(tt.imports) {
			source += "\t\"" + path + "\"\n"
		}
		source += ")\nfunc " + tt.name + "(ctx context.Context) {\n"
		if tt.name == "server" {
			source += "\tmux := http.NewServeMux()\n\tmux.HandleFunc(\"/\", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(\"mux\")) })\n"
		}
		files[tt.name] = source + replaced.Replace(code) + tt.end + "\n}\n"
	}
	for name, source := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name+".go"), []byte(source), 0o600))
	}
	sources, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	program := filepath.Join(dir, "program")
	out, err := exec.CommandContext(t.Context(), "go", append([]string{"build", "-ldflags=-s -w", "-o", program}, sources...)...).CombinedOutput()
	require.NoError(t, err, "%s\n%s", out, files)
	if !full {
		return
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { tt.check(t, start(t, program, tt.name)) })
	}
}

// namedServer starts a server and returns its address. The server responds with its name and the
// path of the request.
func namedServer(t *testing.T, name string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, name+" "+r.URL.Path) }))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// start runs a program until the end of the test. It returns a function that returns what
// the program has written.
func start(t *testing.T, program, arg string) func() string {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	run := exec.CommandContext(ctx, program, arg)
	run.Stdout, run.Stderr = log, log
	require.NoError(t, run.Start())
	t.Cleanup(func() {
		stop()
		_ = run.Wait()
		log.Close()
	})
	return func() string {
		text, err := os.ReadFile(log.Name())
		require.NoError(t, err)
		return string(text)
	}
}

// fetchURL returns the status and the body of url. It waits until the server listens.
func fetchURL(t *testing.T, url string) string {
	t.Helper()
	var rsp *http.Response
	require.Eventually(t, func() bool {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
		if err != nil {
			return false
		}
		rsp, err = http.DefaultClient.Do(req)
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	defer rsp.Body.Close()
	text, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	status, _, _ := strings.Cut(rsp.Status, " ")
	return status + " " + string(text)
}
