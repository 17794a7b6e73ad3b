module suite

go 1.25

require hapax v0.0.0

replace hapax => ./sdk
