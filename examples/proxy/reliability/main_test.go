package reliability

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// full asks for the attacks in full size.
var full = os.Getenv("GOTOWER_RELIABILITY") == "full"

// size is how large an attack is.
func size(short, long int) int {
	if full {
		return long
	}
	return short
}
