package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// sandboxed runs this program again, in namespaces of its own for the network,
// mounts and processes, until it ends. When the first process of such a
// namespace ends, however it ends, the kernel kills all others, and nothing of
// the network or the mounts is left. So there is nothing to clean up.
func sandboxed(ctx context.Context, args ...string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	// The death signal is sent when the thread that started the process ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, self, append([]string{inside}, args...)...) //nolint:gosec // this program
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
		Setpgid:    true, // an interrupt from the keyboard comes by ctx
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = patience
	err = cmd.Run()
	if errors.Is(err, syscall.EPERM) {
		return errors.Join(errCannot, fmt.Errorf("no namespaces can be made here: %w", err))
	}
	return err
}

// apart keeps an interrupt from the keyboard away from a process: it comes to
// this program, which knows what to do.
func apart(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// furnish gives the sandbox its own view of processes, of the names of
// namespaces, and of DNS.
func furnish(dir, hosts string) error {
	file := filepath.Join(dir, "hosts")
	if err := os.WriteFile(file, []byte(hosts), 0o644); err != nil { //nolint:gosec // for all users, as /etc/hosts is
		return err
	}
	for _, m := range []struct {
		source, target, kind string
		flags                uintptr
	}{
		{"none", "/", "", unix.MS_REC | unix.MS_PRIVATE}, // nothing of what follows is seen outside
		{"proc", "/proc", "proc", 0},
		{"tmpfs", "/run", "tmpfs", 0},
		{file, "/etc/hosts", "", unix.MS_BIND},
	} {
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, ""); err != nil {
			return fmt.Errorf("mounting %s: %w", m.target, err)
		}
	}
	return nil
}
