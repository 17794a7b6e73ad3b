module hapax

go 1.25
