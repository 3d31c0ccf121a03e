// Package unwind tells those who observe something of its end.
package unwind

// Observer hears of an end.
type Observer interface{ End(err error) }

// End tells all of the end, the first one first: innermost first, as layers would
// unwind. If one of them panics, those after it are told all the same.
func End[O Observer](observers []O, err error) {
	told := 0
	defer func() {
		if told < len(observers) {
			End(observers[told+1:], err)
		}
	}()
	for ; told < len(observers); told++ {
		observers[told].End(err)
	}
}
