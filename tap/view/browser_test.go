package view

import (
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/freeport"
)

// browser is a tab of a real Chromium.
type browser struct {
	context.Context
	t *testing.T

	mu       sync.Mutex
	expected bool // that connections fail
	wrong    []string
}

func newBrowser(t *testing.T) *browser {
	t.Helper()
	if os.Getenv("GOTOWER_TESTS") != "full" {
		t.Skip("a browser takes its time: set GOTOWER_TESTS=full")
	}
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "headless-shell"} {
		if p, err := exec.LookPath(name); err == nil {
			path = p
			break
		}
	}
	if path == "" {
		t.Skip("no Chromium on this machine: .ci/view.sh installs it")
	}
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox,
		chromedp.Flag("lang", "en"), chromedp.UserDataDir(t.TempDir()))
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	t.Cleanup(cancel)
	ctx, end := chromedp.NewExecAllocator(ctx, opts...)
	t.Cleanup(end)
	ctx, endContext := chromedp.NewContext(ctx)
	b := &browser{Context: ctx, t: t}
	t.Cleanup(func() {
		// Both wait for the process, and where there was none, only once.
		if chromedp.Cancel(ctx) != nil {
			endContext()
		}
	})
	require.NoError(t, chromedp.Listen(ctx, b.hear))
	_, err := chromedp.Call(ctx, log.Enable, cdp.Empty{})
	require.NoError(t, err)
	return b
}

// hear keeps the errors of the console, with violations of the policy.
func (b *browser) hear(e any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := e.(type) {
	case *runtime.EventExceptionThrown:
		b.wrong = append(b.wrong, "exception: "+e.ExceptionDetails.Text+" "+e.ExceptionDetails.Exception.Description)
	case *runtime.EventConsoleAPICalled:
		switch e.Type {
		case runtime.ConsoleAPICalledTypeError, runtime.ConsoleAPICalledTypeWarning, runtime.ConsoleAPICalledTypeAssert:
			b.wrong = append(b.wrong, "console: "+string(e.Args[0].Value))
		}
	case *log.EventEntryAdded:
		if e.Entry.Source == log.EntrySourceNetwork && b.expected {
			return
		}
		b.wrong = append(b.wrong, string(e.Entry.Source)+" "+string(e.Entry.Level)+": "+e.Entry.Text+" "+e.Entry.URL)
	}
}

func (b *browser) expectLoss(expected bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expected = expected
}

func (b *browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	require.NoError(b.t, chromedp.Do(b, actions...))
}

// until waits for an expression to be true.
func (b *browser) until(expression string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b, 30*time.Second)
	defer cancel()
	_, err := chromedp.Run(ctx, chromedp.Poll[bool](expression, chromedp.WithPollingInterval(50*time.Millisecond)))
	if err != nil {
		text, _ := chromedp.Run(b, chromedp.Evaluate[string](`document.body.innerText`))
		require.NoError(b.t, err, "%s\n%s", expression, text)
	}
}

// ask evaluates an expression that is text.
func (b *browser) ask(expression string) string {
	b.t.Helper()
	answer, err := chromedp.Run(b, chromedp.Evaluate[string](expression))
	require.NoError(b.t, err, expression)
	return answer
}

func (b *browser) press(keys string) {
	b.t.Helper()
	b.do(chromedp.KeyEvent(keys))
}

// clean fails the test if the console has errors.
func (b *browser) clean() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Empty(b.t, b.wrong)
}

// host is a server that can be stopped and started at the same address.
type host struct {
	addr   string
	server *http.Server
	done   chan struct{}
	t      *testing.T
}

func (h *host) start(c Config) {
	h.t.Helper()
	if h.addr == "" {
		h.addr = freeport.Addr(h.t)
	}
	l, err := new(net.ListenConfig).Listen(h.t.Context(), "tcp", h.addr)
	require.NoError(h.t, err)
	h.addr = l.Addr().String()
	v := New(c)
	mux := http.NewServeMux()
	mux.Handle("/view/", http.StripPrefix("/view", v))
	h.server = &http.Server{Handler: mux, ReadHeaderTimeout: 20 * time.Second, WriteTimeout: 20 * time.Second}
	h.server.RegisterOnShutdown(v.Shutdown)
	h.done = make(chan struct{})
	go func(done chan struct{}) {
		defer close(done)
		_ = h.server.Serve(l)
	}(h.done)
}

func (h *host) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	require.NoError(h.t, h.server.Shutdown(ctx), "streams keep no server from going")
	<-h.done
}

func newHost(t *testing.T, c Config) *host {
	t.Helper()
	h := &host{t: t}
	h.start(c)
	t.Cleanup(h.stop)
	return h
}

func (tn *testProxy) config() Config {
	return Config{Registry: tn.reg, Describe: tn.describe, Title: "web-0"}
}

// open loads the page and waits until it shows data.
func (b *browser) open(h *host) {
	b.t.Helper()
	b.do(chromedp.EmulateViewport(1440, 900), chromedp.Navigate("http://"+h.addr+"/view"))
	b.until(`document.querySelectorAll('#top-table tbody tr[data-key]').length > 5`)
	b.until(`document.querySelectorAll('#tap-table tbody tr[data-key]').length > 5`)
}

// prefer sets the color scheme that the system prefers, light or dark.
func (b *browser) prefer(theme string) {
	b.t.Helper()
	_, err := chromedp.Call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}},
	})
	require.NoError(b.t, err)
}
