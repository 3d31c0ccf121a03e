package messages

import (
	"os/exec"
	"runtime"
	"syscall"
)

// startAttached runs cmd until it ends, and sends the result of starting it. The system kills the
// program when the thread that started it ends, so the thread is locked. The program therefore ends
// with the test, whatever ends that.
func startAttached(cmd *exec.Cmd, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err := cmd.Start()
	started <- err
	if err == nil {
		_ = cmd.Wait()
	}
}
