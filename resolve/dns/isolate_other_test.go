//go:build !linux

package dns

import (
	"errors"
	"os/exec"
	"testing"
)

func isolate(*exec.Cmd) {}

func enter(string) error { return errors.ErrUnsupported }

func canIsolate(*testing.T) bool { return false }
