//go:build !linux

package main

import (
	"context"
	"os/exec"
)

// sandboxed returns errSkip, because namespaces exist only on Linux.
func sandboxed(context.Context, ...string) error { return errSkip }

// mountSandbox does nothing, because there is no sandbox.
func mountSandbox(string, string) error { return errSkip }

// setProcessGroup does nothing, because there is no sandbox.
func setProcessGroup(*exec.Cmd) {}
