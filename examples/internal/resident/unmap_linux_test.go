package resident_test

import (
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/internal/resident"
)

// Starting a test program uses many more pages of files than what runs after UnmapFiles.
func TestUnmapFiles(t *testing.T) {
	before := residentFiles(t)
	resident.UnmapFiles()
	require.Less(t, residentFiles(t), before)
}

// residentFiles returns how much of the process's resident memory belongs to files, in KiB.
func residentFiles(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	found := regexp.MustCompile(`RssFile:\s+(\d+) kB`).FindSubmatch(status)
	require.NotNil(t, found)
	kib, err := strconv.Atoi(string(found[1]))
	require.NoError(t, err)
	return kib
}
