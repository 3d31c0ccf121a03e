package cli_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gotower/gotower/examples/internal/cli"
)

// stubborn is set for a run of the tests that is a program instead, one that has
// much to do when it is to end.
const stubborn = "CLI_TEST_STUBBORN"

func TestMain(m *testing.M) {
	if os.Getenv(stubborn) == "" {
		goleak.VerifyTestMain(m)
		return
	}
	ctx, stop := cli.Interrupted()
	defer stop()
	fmt.Println("begun")
	<-ctx.Done()
	fmt.Println("ending")
	_, _ = io.Copy(io.Discard, os.Stdin) // closed only by the end of the parent
}

// The first signal ends the context, and the second ends the program.
func TestSecondSignal(t *testing.T) {
	for _, sent := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), stubborn+"=1")
		_, err := cmd.StdinPipe()
		require.NoError(t, err)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		lines := bufio.NewScanner(out)
		require.True(t, lines.Scan())
		require.Equal(t, "begun", lines.Text())
		require.NoError(t, cmd.Process.Signal(sent))
		require.True(t, lines.Scan())
		require.Equal(t, "ending", lines.Text())

		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = cmd.Wait()
		}()
		again := time.NewTicker(10 * time.Millisecond) // the handler of the first signal ends shortly after the signal
		late := time.After(time.Minute)
		for over := false; !over; {
			select {
			case <-ended:
				over = true
			case <-again.C:
				_ = cmd.Process.Signal(syscall.SIGTERM) // an interrupt may be ignored, where tests run in the background
			case <-late:
				require.Fail(t, "it does not end")
			}
		}
		again.Stop()
		died, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
		require.True(t, ok)
		require.Equal(t, syscall.SIGTERM, died.Signal())
	}
}
