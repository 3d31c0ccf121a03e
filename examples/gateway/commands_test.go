package main

import (
	"bytes"
	"context"
	"flag"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/internal/cli"
)

// output runs a command that succeeds and returns what it prints.
func output(t *testing.T, args ...string) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, run(t.Context(), args, &b, io.Discard), args)
	return b.String()
}

// Help is a result. Misuse has one exit status, and names what is allowed.
func TestHelpAndMisuse(t *testing.T) {
	text := output(t, "help")
	assert.Equal(t, text, output(t, "--help"))
	for line := range strings.Lines(text) {
		assert.LessOrEqual(t, len(line), 121, line)
	}
	for _, c := range commands() {
		assert.Contains(t, text, "  gateway "+c.name)
		var help bytes.Buffer
		require.ErrorIs(t, run(t.Context(), []string{c.name, "file", "-h"}, &help, io.Discard), flag.ErrHelp)
		assert.Contains(t, help.String(), "gateway "+c.name)
	}
	assert.Contains(t, output(t, "help", "file"), "\nlisteners:\n")
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, `command "": want one of run, check, explain`},
		{[]string{"serve", "file"}, `command "serve": want one of run, check`},
		{[]string{"run"}, "0 arguments: want gateway run FILE"},
		{[]string{"check", "a", "b"}, "2 arguments: want gateway check FILE"},
		{[]string{"explain", "file", "GET"}, "2 arguments: want gateway explain FILE METHOD URL"},
		{[]string{"health", "a", "b"}, "2 arguments: want gateway health [FILE]"},
		{[]string{"help", "me"}, `topic "me": want file`},
		{[]string{"completion", "fish"}, `shell "fish": want bash or zsh`},
		{[]string{"run", "file", "-log-level", "all"}, `invalid value "all" for flag -log-level: want debug, info, warn or error`},
		{[]string{"run", "-log-format=xml", "file"}, `invalid value "xml" for flag -log-format: want text or json`},
		{[]string{"check", "-H", "A: b", "file"}, "flag provided but not defined: -H"},
	} {
		err := run(t.Context(), c.args, io.Discard, io.Discard)
		require.ErrorContains(t, err, c.want)
		assert.Equal(t, 2, cli.Status(io.Discard, "gateway", err), c.args)
	}
}

func TestVersionCommand(t *testing.T) {
	assert.Regexp(t, `^gateway \S+.* go\S+ \w+/\w+\n$`, output(t, "version"))
	assert.Equal(t, output(t, "version"), output(t, "--version"))
}

// bash completes commands, flags and files.
func TestCompletion(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash")
	}
	script := output(t, "completion", "bash")
	assert.Equal(t, "autoload -U +X bashcompinit && bashcompinit\n"+script, output(t, "completion", "zsh"))
	for words, want := range map[string]string{
		"gateway co": "config completion", "gateway run -log-f": "-log-format", "gateway run gateway.ya": "gateway.yaml",
	} {
		last := len(strings.Fields(words)) - 1
		cmd := exec.CommandContext(t.Context(), bash, "-c", script+"COMP_WORDS=("+words+")\nCOMP_CWORD="+string('0'+rune(last))+
			"\n_gateway\necho ${COMPREPLY[@]}")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		assert.Equal(t, want+"\n", string(out))
	}
}

// The command config prints what the gateway uses, and check warns of routes without requests.
func TestConfigAndCheckCommands(t *testing.T) {
	dir := t.TempDir()
	file := writeIn(t, dir, "include: [more.yaml]\n"+head)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "more.yaml"), []byte(`routes:
- {name: a, directResponse: {status: 200, body: "${TEST_NONE:-text}"}}
- {name: b, directResponse: {status: 200}}
`), 0o600))
	text := output(t, "config", file)
	assert.Contains(t, text, "\n      body: text\n")
	assert.Contains(t, text, "\n    idleTimeout: 2m0s\n")
	again := filepath.Join(dir, "effective.yaml")
	require.NoError(t, os.WriteFile(again, []byte(text), 0o600))
	assert.Equal(t, text, output(t, "config", again))
	assert.Equal(t, "warning: "+dir+"/more.yaml:3:3: routes[1]: no request reaches route b, because earlier routes match all of its requests: a\n"+
		file+" is valid\n", output(t, "check", file))
	require.Error(t, run(t.Context(), []string{"config", filepath.Join(dir, "none.yaml")}, io.Discard, io.Discard))
}

// A configuration from standard input is served, and stays when a file to which it refers changes.
func TestStandardInput(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	require.NoError(t, os.WriteFile("more.yaml", []byte("routes: [{name: a, directResponse: {status: 200, body: one}}]"), 0o600))
	input, err := os.Create("input")
	require.NoError(t, err)
	defer input.Close()
	_, err = input.WriteString("include: [more.yaml]\n" + head)
	require.NoError(t, err)
	_, err = input.Seek(0, io.SeekStart)
	require.NoError(t, err)
	stdin := os.Stdin
	os.Stdin = input
	defer func() { os.Stdin = stdin }()
	p := startFile(t, "-")
	until(t, func() bool { return p.get(t, "GET", "/").body == "one" })
	require.NoError(t, os.WriteFile("next.yaml", []byte("routes: [{name: a, directResponse: {status: 200, body: two}}]"), 0o600))
	require.NoError(t, os.Rename("next.yaml", "more.yaml"))
	until(t, func() bool { return p.get(t, "GET", "/").body == "two" })
	require.NoError(t, os.WriteFile("next.yaml", []byte("routes: 1"), 0o600))
	require.NoError(t, os.Rename("next.yaml", "more.yaml"))
	until(t, func() bool { return strings.Contains(p.log.String(), "more.yaml:1:9: routes") })
	assert.Equal(t, "two", p.get(t, "GET", "/").body)
}

// The command health tells whether the gateway is ready.
func TestHealthCommand(t *testing.T) {
	p := start(t, head+"routes: []\n")
	file := writeIn(t, t.TempDir(), strings.Replace(head, `admin: {address: "127.0.0.1:0"`, `admin: {address: "`+p.addresses["admin"]+`"`, 1)+"routes: []\n")
	until(t, func() bool { return run(t.Context(), []string{"health", file}, io.Discard, io.Discard) == nil })
	_, port, err := net.SplitHostPort(serverAt(t, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "draining", http.StatusServiceUnavailable)
	}))
	require.NoError(t, err)
	file = writeIn(t, t.TempDir(), strings.Replace(head, `admin: {address: "127.0.0.1:0"`, `admin: {address: "127.0.0.1:`+port+`"`, 1)+"routes: []\n")
	require.EqualError(t, run(t.Context(), []string{"health", file}, io.Discard, io.Discard),
		"http://127.0.0.1:"+port+"/readyz: status 503: draining")
}

// After SIGTERM the gateway is not ready, and serves until the delay has passed. The service manager
// knows of both.
func TestDrainDelay(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	var config net.ListenConfig
	manager, err := config.ListenPacket(t.Context(), "unixgram", path)
	require.NoError(t, err)
	defer manager.Close()
	state := func() string {
		b := make([]byte, 100)
		require.NoError(t, manager.SetReadDeadline(time.Now().Add(time.Minute)))
		n, _, err := manager.ReadFrom(b)
		require.NoError(t, err)
		return string(b[:n])
	}
	p := startProgram(t, "drainDelay: 1h\n"+head+"routes: [{name: a, directResponse: {status: 200, body: one}}]\n", "NOTIFY_SOCKET="+path)
	assert.Equal(t, "READY=1", state())
	admin := "http://" + p.addresses["admin"] + "/readyz"
	ready := func(want string) func() bool {
		return func() bool {
			a, err := p.send(t.Context(), "GET", admin, "")
			return err == nil && a.body == want
		}
	}
	until(t, ready("ok\n"))
	p.stop()
	assert.Equal(t, "STOPPING=1", state())
	until(t, ready("draining\n"))
	for range 10 {
		p.client.CloseIdleConnections()
		assert.Equal(t, "one", p.get(t, "GET", "/").body)
	}
	p.stop() // the second signal
	require.ErrorContains(t, p.ended(), "terminated")
}

// startProgram runs the gateway as a process of its own, with variables of the environment.
func startProgram(t *testing.T, text string, variables ...string) *process {
	t.Helper()
	p := &process{file: writeIn(t, t.TempDir(), text), log: &syncBuffer{}, client: &http.Client{Transport: &http.Transport{}}}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "run", p.file)
	cmd.Env = append(append(os.Environ(), asGateway+"=1"), variables...)
	cmd.Stderr = p.log
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	p.stop = func() { _ = cmd.Process.Signal(syscall.SIGTERM) }
	p.ended = sync.OnceValue(cmd.Wait)
	t.Cleanup(func() {
		p.client.CloseIdleConnections()
		_ = cmd.Process.Kill()
		_ = p.ended()
	})
	p.addresses = addressesIn(t, out)
	return p
}

// Two gateways run on one machine. One of them has a free port for the tap.
func TestDefaultTap(t *testing.T) {
	text := strings.Replace(head, `, tap: "off"`, "", 1) + "routes: []\n"
	found := regexp.MustCompile(`default address of the tap is in use.* address=127\.0\.0\.1:\d+`)
	first, second := start(t, text), start(t, text)
	until(t, func() bool { return found.MatchString(first.log.String() + second.log.String()) })
}

// The log has the format and the level of the command line.
func TestLogFlags(t *testing.T) {
	file := writeIn(t, t.TempDir(), head+"routes: []\n")
	for _, c := range []struct {
		level string
		has   bool
	}{{"warn", false}, {"info", true}} {
		log := &syncBuffer{}
		ctx, stop := context.WithCancel(t.Context())
		out, in := io.Pipe()
		done := make(chan error, 1)
		go func() { done <- run(ctx, []string{"run", "-log-format", "json", file, "-log-level", c.level}, in, log) }()
		_, err := out.Read(make([]byte, 1))
		require.NoError(t, err)
		go func() { _, _ = io.Copy(io.Discard, out) }()
		stop()
		require.NoError(t, <-done)
		in.Close()
		assert.Equal(t, c.has, strings.Contains(log.String(), `"level":"INFO","msg":"listening"`), log)
	}
}

// The profiles of the process are served if the file asks for it.
func TestProfiles(t *testing.T) {
	for option, status := range map[string]int{"true": http.StatusOK, "false": http.StatusNotFound} {
		p := start(t, strings.Replace(head, `tap: "off"`, `tap: "off", pprof: `+option, 1)+"routes: []\n")
		a, err := p.send(t.Context(), "GET", "http://"+p.addresses["admin"]+"/debug/pprof/goroutine?debug=1", "")
		require.NoError(t, err)
		assert.Equal(t, status, a.StatusCode)
		a, err = p.send(t.Context(), "GET", "http://"+p.addresses["admin"]+"/debug/pprof/goroutine", "", "Host: evil.example")
		require.NoError(t, err)
		assert.NotEqual(t, http.StatusOK, a.StatusCode)
	}
}
