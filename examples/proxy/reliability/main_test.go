package reliability

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// attackWith has this test program attack instead: see attackers.
const attackWith = "GOTOWER_TEST_ATTACK"

// scratch is where programs are built.
var scratch string

func TestMain(m *testing.M) {
	if name := os.Getenv(attackWith); name != "" {
		os.Exit(attack(name))
	}
	var err error
	if scratch, err = os.MkdirTemp("", "gotower-reliability-"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(exit int) {
		_ = os.RemoveAll(scratch)
		os.Exit(exit)
	}))
}

// full asks for the attacks in full size.
var full = os.Getenv("GOTOWER_RELIABILITY") == "full"

// size is how large an attack is.
func size(short, long int) int {
	if full {
		return long
	}
	return short
}
