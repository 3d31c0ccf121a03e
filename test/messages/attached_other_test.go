//go:build !linux

package messages

import "os/exec"

func startAttached(cmd *exec.Cmd, started chan<- error) {
	err := cmd.Start()
	started <- err
	if err == nil {
		_ = cmd.Wait()
	}
}
