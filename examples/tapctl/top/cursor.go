package top

import "slices"

// cursor is the selection in a changing list. It follows an item once it was moved.
type cursor struct {
	key   string // of the item; "" for the item at the place
	at    int
	first int // that is on the screen
}

// place finds the selected among keys, of which so many fit on the screen.
func (c *cursor) place(keys []string, height int) {
	if c.key != "" {
		if i := slices.Index(keys, c.key); i >= 0 {
			c.at = i
		} else {
			c.key = ""
		}
	}
	c.at = max(0, min(c.at, len(keys)-1))
	c.first = max(min(c.first, c.at), c.at-max(height, 1)+1)
	c.first = max(0, min(c.first, len(keys)-height))
}

// move goes by items, to the ends at most. At the beginning it stays there,
// whatever comes to stand there.
func (c *cursor) move(by int, keys []string) {
	if len(keys) == 0 {
		return
	}
	c.at = max(0, min(c.at+by, len(keys)-1))
	if c.key = keys[c.at]; c.at == 0 {
		c.key = ""
	}
}

// step is how far a key moves a cursor, where page is how much is on the
// screen.
func step(key string, page int) (by int, ok bool) {
	const far = 1 << 30
	page = max(page, 1)
	switch key {
	case "up", "k":
		return -1, true
	case "down", "j":
		return 1, true
	case "pgup", "ctrl+b":
		return -page, true
	case "pgdown", "ctrl+f":
		return page, true
	case "home", "g":
		return -far, true
	case "end", "G":
		return far, true
	}
	return 0, false
}

// sideways is how far a key scrolls to the right.
func sideways(key string) (by int, ok bool) {
	const scroll = 5
	switch key {
	case "a", "left":
		return -scroll, true
	case "d", "right":
		return scroll, true
	}
	return 0, false
}
