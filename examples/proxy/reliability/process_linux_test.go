package reliability

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	_ "github.com/gotower/gotower/examples/proxy/sidecar" // for go test to run again what ran with another proxy
)

// program builds the proxy once for all tests.
var program = sync.OnceValues(func() (string, error) {
	file := filepath.Join(scratch, "proxy")
	out, err := exec.Command("go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", file, "github.com/gotower/gotower/examples/proxy").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return file, nil
})

// process is a proxy in a process of its own.
type process struct {
	addr, admin string // of the outbound listener and the admin server

	cmd     *exec.Cmd
	journal *journal
	asked   time.Time     // when it was told to end
	ended   chan struct{} // closed when the process has ended, which makes the following fields valid
	exit    int
	took    time.Duration // from asked until it ended
}

// startProxy starts a proxy with further environment variables, and waits until it is ready. It is
// killed when the test ends.
func startProxy(t testing.TB, controller string, environ ...string) *process {
	t.Helper()
	file, err := program()
	require.NoError(t, err)
	p := &process{cmd: exec.Command(file), journal: newJournal(), ended: make(chan struct{})}
	p.cmd.Env = append([]string{
		"LINKERD2_PROXY_DESTINATION_SVC_ADDR=" + controller,
		"LINKERD2_PROXY_OUTBOUND_LISTEN_ADDR=127.0.0.1:0",
		"LINKERD2_PROXY_INBOUND_LISTEN_ADDR=127.0.0.1:0",
		"LINKERD2_PROXY_ADMIN_LISTEN_ADDR=127.0.0.1:0",
		"LINKERD2_PROXY_CONTROL_LISTEN_ADDR=127.0.0.1:0",
		"LINKERD2_PROXY_DESTINATION_PROFILE_SUFFIXES=.",
		"LINKERD2_PROXY_OUTBOUND_CONNECT_TIMEOUT=10s",       // one of loopback takes long
		"LINKERD2_PROXY_OUTBOUND_HTTP_FAILFAST_TIMEOUT=20s", // for a busy machine
		"LINKERD2_PROXY_CONTROL_CONNECT_TIMEOUT=10s",
		"LINKERD2_PROXY_LOG=info", "LINKERD2_PROXY_LOG_FORMAT=json",
	}, environ...)
	p.cmd.Stderr = p.journal
	started := make(chan error, 1)
	go p.run(started)
	require.NoError(t, <-started)
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
		if t.Failed() {
			t.Logf("proxy %d: exit %d\n%s", p.cmd.Process.Pid, p.exit, p.journal)
		}
	})
	p.addr, p.admin = p.listens(t, "outbound"), p.listens(t, "admin")
	require.Eventually(t, func() bool {
		_, err := p.ask("/ready")
		return err == nil
	}, patience, time.Millisecond)
	return p
}

// run has a thread to itself, because the process is killed when the thread ends.
func (p *process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(p.ended)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	_ = p.cmd.Wait()
	p.exit, p.took = p.cmd.ProcessState.ExitCode(), time.Since(p.asked)
}

// listens waits for the address of a listener.
func (p *process) listens(t testing.TB, name string) (addr string) {
	t.Helper()
	require.Eventually(t, func() bool {
		select {
		case <-p.ended:
			return true
		default:
			addr = p.journal.addr(name)
			return addr != ""
		}
	}, patience, time.Millisecond)
	require.NotEmpty(t, addr, "the proxy has ended, or logs nothing: %s", p.journal)
	return addr
}

// term sends SIGTERM to the proxy without waiting.
func (p *process) term(t testing.TB) {
	t.Helper()
	p.asked = time.Now()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
}

// over waits until the process has ended.
func (p *process) over(t testing.TB) {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(2 * patience):
		require.Fail(t, "the proxy does not end")
	}
}
