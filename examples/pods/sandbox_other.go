//go:build !linux

package main

import (
	"context"
	"os/exec"
)

// sandboxed returns errSkip, because namespaces exist only on Linux.
func sandboxed(context.Context, ...string) error { return errSkip }

func mountSandbox(string, string) error { return errSkip }

func setProcessGroup(*exec.Cmd) {}
