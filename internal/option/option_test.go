package option_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/option"
)

type appender func(*[]int)

func add(n int) appender { return func(s *[]int) { *s = append(*s, n) } }

func TestApply(t *testing.T) {
	var s []int
	option.Apply(&s, []appender{add(1), nil, add(2)})
	require.Equal(t, []int{1, 2}, s)
	option.Apply(&s, []appender(nil))
	require.Equal(t, []int{1, 2}, s)
}
