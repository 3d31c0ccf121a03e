package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// outside builds the programs and runs this program in the sandbox.
func outside(ctx context.Context, args []string) error {
	var o options
	if err := o.parse(args); err != nil {
		return err
	}
	if err := checkRequirements(o.mode); err != nil {
		return err
	}
	// The program fails early if the API server has not been built.
	if o.kubernetes {
		if _, err := kubePrograms(); err != nil {
			return fmt.Errorf("%w: %w", errSkip, err)
		}
	}
	dir, err := makeWorkDir(o.keep)
	if err != nil {
		return err
	}
	// The user keeps the files with -keep.
	if o.keep == "" {
		defer func() { _ = os.RemoveAll(dir) }()
	}
	programs := []string{"init", "destination", "identity", "pods/app", "proxy"}
	if err := build(ctx, filepath.Join(dir, "bin"), programs); err != nil {
		return err
	}
	err = sandboxed(ctx, append([]string{dir}, args...)...)
	// The sandbox has printed its errors, so only its exit status matters.
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
		// An interrupt also ends the sandbox.
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if failed.ExitCode() == exitSkipped {
			return errSkip // printed by the sandbox
		}
		return errFailed
	}
	return err
}

// checkRequirements returns an error, which wraps errSkip, if this machine lacks a
// permission or a program.
func checkRequirements(mode string) error {
	if runtime.GOOS != "linux" || os.Getuid() != 0 {
		return fmt.Errorf("%w: network namespaces require Linux and root", errSkip)
	}
	// All missing tools are listed at once.
	var missing []string
	for _, tool := range []string{
		"ip", "ss", "setpriv", "sh", "go", "curl", "nginx", "redis-server", "redis-cli", "tcpdump", "iptables-" + mode, "ip6tables-" + mode,
	} {
		if _, err := exec.LookPath(tool); err != nil {
			missing = append(missing, tool)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w: %s not installed; .ci/pods.sh installs all programs", errSkip, strings.Join(missing, ", "))
	}
	return nil
}

// makeWorkDir creates the directory for all files, at keepDir or, if that is empty, in a
// temporary place. All users can read it, because the programs run as different users.
func makeWorkDir(keepDir string) (string, error) {
	// Without -keep, the result of Abs is not used.
	dir, err := filepath.Abs(keepDir)
	if keepDir == "" {
		dir, err = os.MkdirTemp("", "pods-")
	} else if err == nil {
		err = os.Mkdir(dir, 0o700)
	}
	if err != nil {
		return "", fmt.Errorf("--keep: %w", err)
	}
	return dir, os.Chmod(dir, 0o755) //nolint:gosec // for other users, whatever the umask is
}

// build compiles the named example programs into dir.
func build(ctx context.Context, dir string, programs []string) error {
	for i, p := range programs {
		programs[i] = "github.com/gotower/gotower/examples/" + p
	}
	// git rejects a checkout of another user.
	args := append([]string{"build", "-buildvcs=false", "-o", dir + "/"}, programs...)
	cmd := exec.CommandContext(ctx, "go", args...) //nolint:gosec // our own programs
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return nil
}
