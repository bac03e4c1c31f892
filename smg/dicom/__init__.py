"""DICOM: series read strictly, masks read and written as SEG and RTSTRUCT. Nothing here logs a value of a header."""
