package dns

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// isolate gives a process its own mounts and host name. Without privileges, it needs a user namespace.
func isolate(cmd *exec.Cmd) {
	const own = syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: own}
		return
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  own | syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
}

// enter makes dir the /etc of this process, which isolate has prepared.
func enter(dir string) error {
	if err := syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := syscall.Mount(dir, "/etc", "", syscall.MS_BIND, ""); err != nil {
		return err
	}
	return syscall.Sethostname([]byte("box.host.test"))
}

// canIsolate reports whether the system permits isolate and enter.
func canIsolate(t *testing.T) bool {
	_, err := inChild(t, "IPv4", conditions()["IPv4"])
	if err != nil {
		t.Log(err)
	}
	return err == nil
}
