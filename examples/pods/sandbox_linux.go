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

// sandboxed runs this program again, with the arguments args, in new namespaces for
// network, mounts and processes. When the first process in the namespaces ends, the kernel
// kills their other processes and removes the network and the mounts.
func sandboxed(ctx context.Context, args ...string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	// The death signal is sent when the starting thread ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, self, append([]string{inside}, args...)...) //nolint:gosec // this program
	cmd.Stdout = os.Stdout
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
		Setpgid:    true, // ctx handles an interrupt from the keyboard
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stepTimeout
	err = cmd.Run()
	if errors.Is(err, syscall.EPERM) {
		return errors.Join(errSkip, fmt.Errorf("namespaces cannot be created: %w", err))
	}
	return err
}

// setProcessGroup makes cmd run in a process group of its own. An interrupt from the
// keyboard then reaches only this program, which stops the other processes in order.
func setProcessGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// mountSandbox mounts /proc, /run and /etc/hosts, which only the processes of the sandbox see.
// hosts is what /etc/hosts contains, which mountSandbox stores in a file in dir.
func mountSandbox(dir, hosts string) error {
	file := filepath.Join(dir, "hosts")
	if err := os.WriteFile(file, []byte(hosts), 0o644); err != nil { //nolint:gosec // readable by all users, like /etc/hosts
		return err
	}
	// The mounts are made in this order.
	for _, m := range []struct {
		source, target, kind string
		flags                uintptr
	}{
		{"none", "/", "", unix.MS_REC | unix.MS_PRIVATE}, // the later mounts are private
		{"proc", "/proc", "proc", 0},                     // without flags
		{"tmpfs", "/run", "tmpfs", 0},
		{file, "/etc/hosts", "", unix.MS_BIND},
	} {
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, ""); err != nil {
			return fmt.Errorf("mounting %s: %w", m.target, err)
		}
	}
	return nil
}
